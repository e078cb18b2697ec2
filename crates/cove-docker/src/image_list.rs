//! Lists the engine's images.

use std::time::Duration;

use bollard::Docker as Client;
use bollard::errors::Error as ClientError;
use bollard::models::ImageSummary;
use bollard::query_parameters::ListImagesOptions;

/// How often the engine is asked before its server error counts.
const MAX_ATTEMPTS: usize = 5;
const PAUSE: Duration = Duration::from_millis(100);

/// Returns the images that `options` select. Fails if the engine refuses the request, or if each attempt ends with a
/// server error: Podman looks at every image after it has listed them, and fails the whole request if another client
/// removes one of them meanwhile. The next request no longer meets that image.
pub(super) async fn list_images(
    client: &Client,
    options: Option<ListImagesOptions>,
) -> Result<Vec<ImageSummary>, ClientError> {
    for _ in 1..MAX_ATTEMPTS {
        match client.list_images(options.clone()).await {
            Err(ClientError::DockerResponseServerError { status_code: 500.., .. }) => tokio::time::sleep(PAUSE).await,
            answer => return answer,
        }
    }
    client.list_images(options).await
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::net::TcpListener;

    use super::*;

    /// Starts an engine that gives one answer to each connection, a status and a body, and then ends.
    fn fake_engine(answers: &'static [(u16, &str)]) -> (Client, std::thread::JoinHandle<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let engine = std::thread::spawn(move || {
            for (status, body) in answers {
                let (mut stream, _) = listener.accept().unwrap();
                BufReader::new(&stream).lines().map(Result::unwrap).find(String::is_empty).unwrap();
                let length = body.len();
                write!(stream, "HTTP/1.1 {status} x\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}")
                    .unwrap();
            }
        });
        (Client::connect_with_http(&url, 5, bollard::API_DEFAULT_VERSION).unwrap(), engine)
    }

    const GONE: (u16, &str) = (500, r#"{"message":"checking if image 12 is dangling: image not known"}"#);

    #[tokio::test]
    async fn lists_images_while_another_client_removes_one() {
        let (client, engine) = fake_engine(&[GONE, GONE, GONE, GONE, (200, "[]")]);
        assert_eq!(list_images(&client, None).await.unwrap(), []);
        engine.join().unwrap();
    }

    #[tokio::test]
    async fn reports_an_engine_that_cannot_list_images() {
        let (client, engine) = fake_engine(&[GONE; MAX_ATTEMPTS]);
        let error = list_images(&client, None).await.unwrap_err();
        assert!(matches!(error, ClientError::DockerResponseServerError { status_code: 500, .. }), "{error}");
        engine.join().unwrap();
        // Another answer than a server error is final.
        let (client, engine) = fake_engine(&[(400, r#"{"message":"no such filter"}"#)]);
        let error = list_images(&client, None).await.unwrap_err();
        assert!(matches!(error, ClientError::DockerResponseServerError { status_code: 400, .. }), "{error}");
        engine.join().unwrap();
    }
}
