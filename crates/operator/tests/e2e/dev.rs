//! `coder-k8s dev` with real programs, as a person runs it.

use std::{
    fs,
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::Duration,
};

use coder_k8s_testbed::{binaries::CODER_VERSION, eventually};
use rustix::process::{Pid, Signal};

use coder_k8s_scenes::request;

const PATIENCE: Duration = Duration::from_mins(4);

struct Dev {
    child: Child,
    output: PathBuf,
}

impl Dev {
    fn start(name: &str, args: &[&str]) -> Self {
        let output = std::env::temp_dir().join(format!("coder-k8s-dev-{name}-{}", std::process::id()));
        let file = fs::File::create(&output).unwrap();
        let child = Command::new(env!("CARGO_BIN_EXE_coder-k8s"))
            .arg("dev")
            .args(args)
            .stdin(Stdio::null())
            .stdout(file.try_clone().unwrap())
            .stderr(file)
            .spawn()
            .unwrap();
        Self { child, output }
    }

    fn output(&self) -> String {
        fs::read_to_string(&self.output).unwrap()
    }

    async fn says(&self, text: &str) {
        let said = eventually(PATIENCE, || async {
            if self.output().contains(text) { Ok(()) } else { Err(self.output()) }
        });
        said.await.unwrap_or_else(|error| panic!("{text:?} was not said: {error}"));
    }

    /// Its exit code, once it has said goodbye.
    async fn ends(&mut self) -> Option<i32> {
        self.says("done: nothing is left behind").await;
        self.child.wait().unwrap().code()
    }
}

impl Drop for Dev {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_file(&self.output);
    }
}

#[tokio::test]
async fn it_says_where_the_real_coderd_answers_and_takes_it_away_again() {
    let mut dev = Dev::start("real", &["--with-coderd"]);
    dev.says("watching; Ctrl-C ends it").await;
    let output = dev.output();
    let address = output.lines().find_map(|line| line.split("answers at http://").nth(1)?.split(' ').next());
    let address = address.unwrap_or_else(|| panic!("no address in\n{output}")).to_owned();
    let asked = "GET /api/v2/buildinfo HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    let (code, body) = request(&address, asked).await;
    assert!(code == 200 && body.contains(CODER_VERSION), "{code}: {body}");
    // The login that it says is one.
    let login = output.lines().find_map(|line| line.split("log in as ").nth(1)).unwrap();
    let (email, password) = login.split_once(" with the password ").unwrap();
    let body = format!("{{\"email\":\"{email}\",\"password\":\"{password}\"}}");
    let length = body.len();
    let asked = format!(
        "POST /api/v2/users/login HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}"
    );
    let (code, body) = request(&address, &asked).await;
    assert!(code == 201 && body.contains("session_token"), "{code}: {body}");
    let pid = Pid::from_raw(i32::try_from(dev.child.id()).unwrap()).unwrap();
    rustix::process::kill_process(pid, Signal::INT).unwrap();
    assert_eq!(dev.ends().await, Some(0), "{}", dev.output());
    assert!(tokio::net::TcpStream::connect(&address).await.is_err(), "coderd outlived dev");
}

#[tokio::test]
async fn it_ends_by_itself_when_the_real_coderd_is_ready() {
    let mut dev = Dev::start("real-until-ready", &["--with-coderd", "--until-ready"]);
    assert_eq!(dev.ends().await, Some(0), "{}", dev.output());
    for line in
        ["Postgres is up", "answers at http://127.", "log in as admin@example.com", "everything is Ready"]
    {
        assert!(dev.output().contains(line), "{line} is missing in\n{}", dev.output());
    }
}

#[tokio::test]
async fn the_real_daemons_and_the_real_proxy_join_the_simulated_coderd() {
    let mut dev = Dev::start("daemons", &["--with-daemons", "--until-ready"]);
    assert_eq!(dev.ends().await, Some(0), "{}", dev.output());
    for line in [
        "simulated coderd v2.36.1, premium license",
        "key pool-eu, 2 daemons connected",
        "registered as proxy-eu, health ok",
    ] {
        assert!(dev.output().contains(line), "{line} is missing in\n{}", dev.output());
    }
}
