#[tokio::main]
async fn main() {
    let r = coder_k8s_testbed::Binaries::build(&mut |p| println!("{p} [{}]", p.detail)).await;
    match r {
        Ok(b) => println!("{b:?}"),
        Err(e) => println!("ERR {e}"),
    }
}
