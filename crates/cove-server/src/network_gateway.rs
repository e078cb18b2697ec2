//! Opens the network for sessions: writes the audit lines of requests to the file that has those of calls, and reads the
//! values of credentials as those of servers are read.

use std::io;
use std::path::Path;
use std::sync::Arc;

use cove_core::BoxFuture;
use cove_core::error::Failure;
use cove_core::process_env::ProcessEnv;
use cove_egress::{
    CredentialValues, DownloadCache, EgressAuditLine, EgressCredential, EgressGateway, EgressMeter, EgressRecorder,
    EgressRules, HostServices, SecretValue, SystemResolver,
};
use cove_upstream::broker::BrokerConfig;
use cove_upstream::broker::audit::AuditTrail;
use cove_upstream::pool::ReferenceValues;
use cove_upstream::secrets::SecretStore;

/// More than a line can have: its names, its path and its rule are bounded.
const LINE_ROOM: u64 = 4096;

/// The variables that name the certificate authorities which Cove trusts.
const TRUST_VARIABLES: [&str; 2] = ["SSL_CERT_FILE", "SSL_CERT_DIR"];

struct NetworkAudit(AuditTrail<EgressAuditLine>);

impl EgressRecorder for NetworkAudit {
    fn prepare(&self) -> io::Result<()> {
        self.0.prepare(LINE_ROOM)
    }

    fn release(&self) {
        self.0.release(LINE_ROOM);
    }

    fn write(&self, line: &EgressAuditLine) {
        self.0.write(line.clone(), LINE_ROOM);
    }
}

/// Reads the values of credentials as those of servers are read.
struct HostValues(ReferenceValues);

impl CredentialValues for HostValues {
    fn check(&self, text: &str) -> Result<Option<SecretValue>, String> {
        Ok(self.0.check(text)?.map(SecretValue::new))
    }

    fn read<'a>(&'a self, text: &'a str) -> BoxFuture<'a, Result<SecretValue, String>> {
        Box::pin(async move { self.0.read(text).await.map(SecretValue::new) })
    }
}

fn host_values(broker: &BrokerConfig, env: &ProcessEnv) -> HostValues {
    let secrets = SecretStore::new(broker.state_dir.as_deref(), broker.secrets_helper.as_ref(), env);
    HostValues(ReferenceValues::new(secrets, env))
}

/// Fails if the value of a credential is missing or too short, so that no session starts with a rule that cannot be kept. Runs no
/// program.
pub fn check_credentials(rules: &EgressRules, broker: &BrokerConfig, env: &ProcessEnv) -> Result<(), Failure> {
    let values = host_values(broker, env);
    for EgressCredential { name, reference, place, .. } in &rules.credentials {
        let checked = values.check(reference).and_then(|value| value.map_or(Ok(()), |value| value.check()));
        if let Err(need) = checked {
            return Err(Failure::usage(format!("could not use `value` of `[credentials.{name}]` in {place}"))
                .because(format!("it needs {need}"))
                .with_hint("give it a value, or run with `--no-net`, which drops all rules"));
        }
    }
    Ok(())
}

/// Returns the gateway for sessions with these rules, or None if they allow nothing. Without a state directory, nothing
/// is recorded, as for calls, and no download is kept. `meter` counts for metrics.
pub fn open_gateway(
    rules: &EgressRules,
    broker: &BrokerConfig,
    env: &ProcessEnv,
    meter: Option<Arc<dyn EgressMeter>>,
) -> Option<Arc<EgressGateway>> {
    rules.allow_anything().then(|| {
        let audit = Arc::new(NetworkAudit(AuditTrail::new(broker.state_dir.clone())));
        let mut services = HostServices::new(audit, Box::new(SystemResolver));
        services.values = Arc::new(host_values(broker, env));
        services.downloads = open_downloads(rules, broker, env);
        if let Some(meter) = meter {
            services.meter = meter;
        }
        EgressGateway::new(rules.clone(), services)
    })
}

/// Returns where downloads are kept that sessions share, if a rule has any.
fn open_downloads(rules: &EgressRules, broker: &BrokerConfig, env: &ProcessEnv) -> Option<Arc<DownloadCache>> {
    let (limit, is_wanted) = (rules.download_cache.0, rules.has_caching_rules() && rules.download_cache.0 > 0);
    let folder = broker.state_dir.as_ref().filter(|_| is_wanted)?.join("downloads");
    // A process that trusts other authorities than the machine has downloads of its own.
    let trust = TRUST_VARIABLES.map(|name| env.directory(name).unwrap_or(Path::new("")).to_string_lossy().into_owned());
    Some(DownloadCache::new(folder, limit, trust.join("\n")))
}
