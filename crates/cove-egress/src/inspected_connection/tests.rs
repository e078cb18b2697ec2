//! What kept downloads count.

use std::io;
use std::sync::atomic::Ordering;

use super::*;
use crate::audit_line::EgressRecorder;
use crate::gateway_services::HostServices;
use crate::name_lookups::SystemResolver;
use crate::rules::{EgressRules, TrafficLimits};

struct NoLines;

impl EgressRecorder for NoLines {
    fn prepare(&self) -> io::Result<()> {
        Ok(())
    }

    fn write(&self, _: &EgressAuditLine) {}
}

#[tokio::test]
async fn a_kept_download_counts_before_it_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let cache = DownloadCache::new(folder.path().join("downloads"), 1 << 20, String::new());
    let kept = SharedAnswer { length: 20, age: Duration::ZERO, lifetime: Duration::from_secs(600), fields: Vec::new() };
    cache.begin(cache.key("server", "/a"), kept).unwrap().push(&[7; 20]);
    let answer = async |max_download| {
        let limits = TrafficLimits { max_upload: 0, max_download };
        let host = HostServices::new(Arc::new(NoLines), Box::new(SystemResolver));
        let services = GatewayServices::new(EgressRules { limits, ..EgressRules::default() }, host);
        let line = OpenEgressLine::begin(&services, EgressAuditLine::default(), &Arc::default()).unwrap();
        let counts = Arc::clone(&line.counts);
        let meter = RelayMeter::new(Arc::default(), &services, Arc::clone(&counts));
        let record = RequestRecord::new(meter, line, Arc::default(), "/a".to_owned());
        (kept_answer(&cache, &cache.key("server", "/a"), &record).await.unwrap(), counts)
    };
    let (response, counts) = answer(1000).await;
    let before = counts.down.load(Ordering::Relaxed);
    assert!((20..200).contains(&before), "{before}");
    assert_eq!(response.unwrap().into_body().collect().await.unwrap().to_bytes(), [7; 20].as_slice());
    assert_eq!(counts.down.load(Ordering::Relaxed), before, "nothing counts twice");
    let (response, counts) = answer(19).await;
    assert!(matches!(response, Err(RelayError::Limit { name: "max_download", .. })));
    assert_eq!(counts.down.load(Ordering::Relaxed), 0);
}
