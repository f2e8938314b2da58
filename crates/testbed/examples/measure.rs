use std::time::Instant;
#[tokio::main]
async fn main() {
    for kcm in [false, true, true] {
        let t = Instant::now();
        let c = coder_k8s_testbed::Cluster::builder().controller_manager(kcm).progress(move |l| println!("{:?} {l}", t.elapsed())).start().await.unwrap();
        println!("usable kcm={kcm} {:?}", t.elapsed());
        let n = c.node("x").await.unwrap();
        println!("node {:?}", t.elapsed());
        for p in c.pids() { let s = std::fs::read_to_string(format!("/proc/{p}/status")).unwrap(); println!("{}", s.lines().filter(|l| l.starts_with("Name")||l.starts_with("VmRSS")).collect::<Vec<_>>().join(" ")); }
        drop(n);
        let t = Instant::now();
        c.stop().await;
        println!("stop {:?}", t.elapsed());
        let t = Instant::now();
        if !kcm { let c = coder_k8s_testbed::Cluster::builder().controller_manager(kcm).start().await.unwrap(); let r = Instant::now(); c.restart_api_server().await.unwrap(); println!("restart {:?} ", r.elapsed());
        let t = Instant::now(); drop(c);println!("drop {:?}", t.elapsed()); }
        let _ = t;
    }
}
