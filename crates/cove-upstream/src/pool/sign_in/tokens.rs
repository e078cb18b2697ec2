//! Requests to the token endpoint and to the revocation endpoint, and their answers.

use http::StatusCode;
use serde_json::Value;

use super::client_identity::ClientIdentity;
use super::records::KeptTokens;
use super::web::SignInWeb;
use super::{now_seconds, parse_scopes};

/// Most bytes of a token.
const MAX_TOKEN: usize = 16 * 1024;
/// Longer lives are taken as unknown: the server says when a token has ended.
const MAX_LIFETIME: u64 = 10 * 365 * 86_400;

/// Why there is no token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum TokenFailure {
    /// The authorization server refused, with this code of the protocol.
    Refused(String),
    /// There was no answer, or one that cannot be used. The text may be shown.
    Unusable(String),
}

impl TokenFailure {
    /// Returns true if the same request can never succeed. Other refusals, such as `temporarily_unavailable`, may pass.
    pub(super) fn is_final(&self) -> bool {
        let codes =
            ["invalid_grant", "invalid_client", "unauthorized_client", "unsupported_grant_type", "access_denied"];
        matches!(self, Self::Refused(code) if codes.contains(&code.as_str()))
    }

    pub(super) fn describe(&self) -> String {
        match self {
            Self::Refused(code) => format!("the authorization server refused: `{code}`"),
            Self::Unusable(reason) => reason.clone(),
        }
    }
}

/// Asks for tokens. `scopes` are those that the request is for, which the answer may leave out.
pub(super) async fn request_tokens(
    web: &SignInWeb,
    endpoint: &str,
    client: &ClientIdentity,
    form: &[(&str, &str)],
    scopes: &[String],
) -> Result<KeptTokens, TokenFailure> {
    let request = client.to_request(endpoint, form).map_err(TokenFailure::Unusable)?;
    let answer = web.send(request).await.map_err(TokenFailure::Unusable)?;
    // The answer may hold tokens, so nothing of it is shown.
    let body: Value = serde_json::from_slice(answer.body()).unwrap_or_default();
    if answer.status() != StatusCode::OK {
        let is_code = |code: &&str| {
            (1..=40).contains(&code.len()) && code.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
        };
        let code = body["error"].as_str().filter(is_code).filter(|_| answer.status().is_client_error());
        return Err(match code {
            Some(code) => TokenFailure::Refused(code.to_owned()),
            None => TokenFailure::Unusable(format!("the token endpoint answered HTTP {}", answer.status().as_u16())),
        });
    }
    read_tokens(&body, scopes)
        .map_err(|reason| TokenFailure::Unusable(format!("the answer of the token endpoint cannot be used: {reason}")))
}

fn read_tokens(body: &Value, requested: &[String]) -> Result<KeptTokens, &'static str> {
    let token = |name: &str| match &body[name] {
        Value::Null => Ok(None),
        Value::String(token) if token.is_empty() => Ok(None),
        // Visible characters alone: the token becomes part of a header.
        Value::String(token) if token.len() <= MAX_TOKEN && token.bytes().all(|byte| byte.is_ascii_graphic()) => {
            Ok(Some(token.clone()))
        }
        Value::String(token) if token.len() > MAX_TOKEN => Err("a token is too long"),
        _ => Err("a token is no text"),
    };
    let access_token = token("access_token")?.ok_or("it has no access token")?;
    match &body["token_type"] {
        Value::Null => {}
        Value::String(kind) if kind.eq_ignore_ascii_case("bearer") => {}
        _ => return Err("the token is not a bearer token"),
    }
    // Some servers write the number as a text.
    let lifetime = body["expires_in"].as_f64().or_else(|| body["expires_in"].as_str()?.parse().ok());
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is within these bounds")]
    let lifetime =
        lifetime.filter(|seconds| (0.0..=MAX_LIFETIME as f64).contains(seconds)).map(|seconds| seconds as u64);
    let scopes = match &body["scope"] {
        Value::String(scopes) => parse_scopes([scopes.as_str()]).map_err(|_| "its scopes cannot be used")?,
        // A server that says nothing has granted what was asked for.
        _ => requested.to_vec(),
    };
    Ok(KeptTokens {
        access_token,
        refresh_token: token("refresh_token")?,
        expires_at: lifetime.map(|lifetime| now_seconds() + lifetime),
        scopes,
    })
}

/// Asks the authorization server to forget a token. Fails with the reason if it did not.
pub(super) async fn revoke_token(
    web: &SignInWeb,
    endpoint: &str,
    client: &ClientIdentity,
    token: &str,
    kind: &str,
) -> Result<(), String> {
    web.policy.check("revocation endpoint", endpoint)?;
    let form = [("token", token), ("token_type_hint", kind)];
    let mut status = web.send(client.to_request(endpoint, &form)?).await?.status();
    if status == StatusCode::BAD_REQUEST && client.secret.is_none() {
        // Servers of the Python SDK want this field of every client, also of one without a secret.
        let form = [form[0], form[1], ("client_secret", "")];
        status = web.send(client.to_request(endpoint, &form)?).await?.status();
    }
    match status {
        status if status.is_success() => Ok(()),
        status => Err(format!("the revocation endpoint answered HTTP {}", status.as_u16())),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn reads_tokens_within_bounds() {
        let read = |body: Value| read_tokens(&body, &["asked".to_owned()]);
        let whole = read(json!({
            "access_token": "a", "token_type": "bearer", "refresh_token": "r", "expires_in": 60, "scope": "x y x",
        }));
        let whole = whole.unwrap();
        assert_eq!((whole.access_token.as_str(), whole.refresh_token.as_deref()), ("a", Some("r")));
        assert_eq!(whole.scopes, ["x", "y"]);
        assert!(whole.expires_at.unwrap().abs_diff(now_seconds() + 60) < 5);
        assert_eq!(read(json!({"access_token": "a"})).unwrap().scopes, ["asked"]);
        for (lifetime, is_known) in
            [(json!("3600"), true), (json!(0), true), (json!(-5), false), (json!(1e18), false), (json!([]), false)]
        {
            let tokens = read(json!({"access_token": "a", "expires_in": lifetime})).unwrap();
            assert_eq!(tokens.expires_at.is_some(), is_known, "{lifetime}");
        }
        for body in [
            json!({}),
            json!([]),
            json!({"access_token": ""}),
            json!({"access_token": 1}),
            json!({"access_token": "a\r\nEvil: 1"}),
            json!({"access_token": "a b"}),
            json!({"access_token": "x".repeat(MAX_TOKEN + 1)}),
            json!({"access_token": "a", "refresh_token": "x".repeat(MAX_TOKEN + 1)}),
            json!({"access_token": "a", "token_type": "DPoP"}),
            json!({"access_token": "a", "scope": (0..10_000).map(|number| format!("s{number} ")).collect::<String>()}),
        ] {
            assert!(read(body.clone()).is_err(), "{:.80}", body.to_string());
        }
    }
}
