//! As which client Cove asks an authorization server for tokens, and how it proves that.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::header::{AUTHORIZATION, CONTENT_TYPE};
use http::{HeaderValue, Request};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use url::form_urlencoded::{Serializer, byte_serialize};

/// How a client proves its identity to the token endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum ClientProof {
    /// The identity alone.
    None,
    /// A secret, in a header.
    Basic,
    /// A secret, in the request.
    Post,
    /// A statement that the client signed.
    Assertion,
}

const ASSERTION_TYPE: &str = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer";

#[derive(Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct ClientIdentity {
    pub(super) id: String,
    pub(super) secret: Option<String>,
    pub(super) proof: ClientProof,
    /// For one request. It is not kept.
    #[serde(skip)]
    pub(super) assertion: Option<String>,
}

impl ClientIdentity {
    /// Chooses the way of proof that an authorization server supports: a header if it does not say.
    pub(super) fn new(id: String, secret: Option<String>, supported: Option<&Value>) -> Self {
        let supports = |method: &str| {
            let methods = supported.and_then(Value::as_array);
            methods.is_none_or(|methods| methods.iter().any(|one| one == method))
        };
        let proof = match &secret {
            None => ClientProof::None,
            Some(_) if supports("client_secret_basic") => ClientProof::Basic,
            Some(_) if supports("client_secret_post") => ClientProof::Post,
            Some(_) if supports("none") => ClientProof::None,
            Some(_) => ClientProof::Basic,
        };
        Self { id, secret, proof, assertion: None }
    }

    /// Returns a request with a form and the proof of this client.
    pub(super) fn to_request(&self, endpoint: &str, form: &[(&str, &str)]) -> Result<Request<Vec<u8>>, String> {
        let mut body = Serializer::new(String::new());
        body.extend_pairs(form);
        let mut request = Request::post(endpoint)
            .header(CONTENT_TYPE, "application/x-www-form-urlencoded")
            .header(http::header::ACCEPT, "application/json");
        match (self.proof, &self.secret) {
            (ClientProof::Assertion, _) => {
                // The statement names the client.
                let assertion = self.assertion.as_deref().unwrap_or_default();
                body.append_pair("client_assertion_type", ASSERTION_TYPE).append_pair("client_assertion", assertion);
            }
            (ClientProof::Basic, Some(secret)) => {
                let encode = |text: &str| byte_serialize(text.as_bytes()).collect::<String>();
                let pair = STANDARD.encode(format!("{}:{}", encode(&self.id), encode(secret)));
                let value = HeaderValue::from_str(&format!("Basic {pair}"));
                let mut value = value.map_err(|_| "the client's secret cannot be sent".to_owned())?;
                value.set_sensitive(true);
                request = request.header(AUTHORIZATION, value);
            }
            (ClientProof::Post, Some(secret)) => {
                body.append_pair("client_id", &self.id).append_pair("client_secret", secret);
            }
            _ => {
                body.append_pair("client_id", &self.id);
            }
        }
        request.body(body.finish().into_bytes()).map_err(|_| "the token endpoint is no address".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn request(supported: &Value) -> (Option<String>, String) {
        let client = ClientIdentity::new("a:b".to_owned(), Some("s&c".to_owned()), Some(supported));
        let request = client.to_request("https://a.example/token", &[("grant_type", "x y")]).unwrap();
        let header = request.headers().get(AUTHORIZATION).map(|value| value.to_str().unwrap().to_owned());
        (header, String::from_utf8(request.into_body()).unwrap())
    }

    #[test]
    fn the_server_chooses_the_way_of_proof() {
        let basic = (Some(format!("Basic {}", STANDARD.encode("a%3Ab:s%26c"))), "grant_type=x+y".to_owned());
        assert_eq!(request(&json!(["client_secret_post", "client_secret_basic"])), basic);
        assert_eq!(request(&Value::Null), basic);
        let post = "grant_type=x+y&client_id=a%3Ab&client_secret=s%26c".to_owned();
        assert_eq!(request(&json!(["none", "client_secret_post"])), (None, post));
        assert_eq!(request(&json!(["none"])), (None, "grant_type=x+y&client_id=a%3Ab".to_owned()));
    }
}
