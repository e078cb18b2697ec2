//! Containers of Docker and of Podman as sandboxes, through the one interface that both have.
