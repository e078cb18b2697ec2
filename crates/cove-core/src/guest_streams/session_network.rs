//! What the host keeps for the connections of one session, made when its sandbox starts. This crate passes it on and does
//! not know what it is.

use std::any::Any;
use std::sync::Arc;

use crate::error::Failure;

/// The network of one session: what its runner is told, and what the host alone knows.
#[derive(Clone)]
pub struct SessionNetwork {
    /// The certificate of an authority that programs in the sandbox shall trust, in PEM.
    pub authority: Option<String>,
    /// Variables for the environment of code. They hold no secret.
    pub variables: Vec<(String, String)>,
    /// What belongs to the session and never leaves the host.
    pub state: Arc<dyn Any + Send + Sync>,
}

/// Makes the network of each session that starts, also of those that are kept ready.
pub trait SessionNetworks: Send + Sync {
    /// Fails if the session would not be what the rules say.
    fn create(&self) -> Result<SessionNetwork, Failure>;
}
