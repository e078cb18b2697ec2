//! Cove itself in a container, in each of the ways of `docs/guides/container.md`.

mod outer;
mod served;
mod sibling;
mod ways;
