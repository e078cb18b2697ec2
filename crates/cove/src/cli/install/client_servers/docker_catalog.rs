//! Entries of Docker's MCP catalogue, whose `registry` names images and addresses, as entries that a client could have.

use cove_core::document::{DocumentMember, DocumentNode};
use cove_core::error::display_value;

/// The key of the servers in a catalogue.
pub(super) const REGISTRY: &str = "registry";

/// The same server as Docker's gateway would start it. Fails with the reason why it cannot be started that way.
pub(super) fn to_entry(server: &DocumentNode) -> Result<DocumentNode, String> {
    let text = |key: &str| server.get(key).and_then(DocumentNode::text);
    let items = |key: &str| server.get(key).and_then(DocumentNode::items).unwrap_or_default();
    let secrets: Vec<String> = items("secrets").iter().filter_map(|secret| named(secret, "env")).collect();
    let mut fields = vec![DocumentMember::new("env_keys", DocumentNode::list(secrets.iter().cloned()))];
    fields.extend(text("description").map(|text| DocumentMember::new("description", text)));
    match (text("type"), text("image"), server.get("remote")) {
        (Some("remote"), _, Some(remote)) => {
            let kind = remote.get("transport_type").and_then(DocumentNode::text);
            fields.extend(kind.map(|kind| DocumentMember::new("type", kind)));
            for key in ["url", "headers"] {
                fields.extend(remote.get(key).map(|node| DocumentMember::new(key, node.clone())));
            }
        }
        (Some("server") | None, Some(image), _) => {
            let mut args: Vec<String> = ["run", "-i", "--rm"].map(str::to_owned).to_vec();
            let mut env = Vec::new();
            for variable in items("env") {
                let (Some(name), Some(value)) = (named(variable, "name"), named(variable, "value")) else { continue };
                args.extend(["-e".to_owned(), name.clone()]);
                env.push(DocumentMember::new(&name, value.as_str()));
            }
            args.extend(secrets.into_iter().flat_map(|name| ["-e".to_owned(), name]));
            for volume in items("volumes") {
                args.extend(["-v".to_owned(), volume.text().unwrap_or_default().to_owned()]);
            }
            args.extend(text("user").into_iter().flat_map(|user| ["-u".to_owned(), user.to_owned()]));
            if server.get("disableNetwork").and_then(DocumentNode::boolean) == Some(true) {
                args.extend(["--network", "none"].map(str::to_owned));
            }
            args.push(image.to_owned());
            args.extend(items("command").iter().filter_map(|word| word.text_or_number().map(str::to_owned)));
            let is_template = |text: &&str| text.contains("{{");
            let texts = args.iter().map(String::as_str).chain(env.iter().filter_map(|member| member.node.text()));
            if let Some(template) = texts.into_iter().find(is_template) {
                return Err(format!("it has a parameter, `{}`", display_value(template)));
            }
            fields.push(DocumentMember::new("command", "docker"));
            fields.push(DocumentMember::new("args", DocumentNode::list(args)));
            fields.push(DocumentMember::new("env", DocumentNode::map(env)));
            let hosts = server.get("allowHosts");
            fields.extend(hosts.map(|hosts| DocumentMember::new("allowHosts", hosts.clone())));
        }
        (kind, ..) => {
            return Err(format!(
                "its `type` is `{}`, which only Docker starts",
                display_value(kind.unwrap_or("server"))
            ));
        }
    }
    Ok(DocumentNode::map(fields))
}

fn named(node: &DocumentNode, key: &str) -> Option<String> {
    node.get(key)?.text_or_number().map(str::to_owned)
}
