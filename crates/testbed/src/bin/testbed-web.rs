//! A small web server for tests of the node. It listens on `WEB_ADDRESS`, and the path of a request says what to do.
//!
//! `/env/NAME` answers with a variable and `/args` with the arguments; `/exit/CODE` exits; `/unready` makes
//! `/healthz` fail. It exits on SIGTERM, unless `WEB_STUBBORN` is set, and prints that it does.

use std::io;

use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

#[tokio::main]
#[expect(clippy::print_stdout, reason = "tests read what it wrote")]
async fn main() -> io::Result<()> {
    let listener = TcpListener::bind(std::env::var("WEB_ADDRESS").map_err(io::Error::other)?).await?;
    println!("listening on {}", listener.local_addr()?);
    let mut asked_to_end = signal(SignalKind::terminate())?;
    let mut healthy = true;
    loop {
        let (stream, _) = tokio::select! {
            accepted = listener.accept() => accepted?,
            _ = asked_to_end.recv() => {
                println!("asked to end");
                if std::env::var_os("WEB_STUBBORN").is_none() {
                    return Ok(());
                }
                continue;
            }
        };
        let mut stream = BufReader::new(stream);
        let mut line = String::new();
        stream.read_line(&mut line).await?;
        let path = line.split(' ').nth(1).unwrap_or_default();
        let (code, body) = match path.trim_start_matches('/').split_once('/') {
            Some(("env", name)) => match std::env::var(name) {
                Ok(value) => (200, value),
                Err(_) => (404, String::new()),
            },
            Some(("exit", code)) => std::process::exit(code.parse().unwrap_or(1)),
            _ if path == "/args" => (200, std::env::args().skip(1).collect::<Vec<_>>().join(" ")),
            _ if path == "/unready" => {
                healthy = false;
                (200, String::new())
            }
            _ if path == "/healthz" && !healthy => (503, String::new()),
            _ => (200, "web".to_owned()),
        };
        let length = body.len();
        let answer =
            format!("HTTP/1.1 {code} -\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}");
        // A client may disconnect before the answer, so errors are ignored.
        let _ = stream.write_all(answer.as_bytes()).await;
    }
}
