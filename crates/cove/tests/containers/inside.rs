//! Cove itself in a container, in each of the ways of `docs/guides/cove-in-a-container.md`.

mod embedded_sandbox;
mod outer_engine;
mod server_image;
mod sibling_containers;
