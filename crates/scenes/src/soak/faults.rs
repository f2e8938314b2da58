//! What goes wrong in a life.

use std::time::Duration;

use coder_k8s_testbed::{codersim::SimFault, postgres::ProxyFault};

use super::life::Life;

impl Life {
    /// The token of the operator is replaced, or somebody removes it where it made its own.
    pub async fn lose_token(&mut self) {
        if let Some(based) = &self.based {
            let client = based.database.connect_as_superuser().await.unwrap();
            client
                .batch_execute("DELETE FROM api_keys WHERE token_name LIKE 'coder-k8s-operator-%'")
                .await
                .unwrap();
            return;
        }
        let fresh = self.sim.owner_token();
        self.sim.revoke(&std::mem::replace(&mut self.token, fresh.clone()));
        tokio::time::sleep(Duration::from_millis(200)).await;
        self.store("token", "token", &fresh).await;
    }

    pub fn trouble_coderd(&self, call: u8, fault: u8, times: u8) {
        let calls = [
            ("POST", "/api/v2/organizations"),
            ("DELETE", "/api/v2/organizations"),
            ("GET", "/api/v2/organizations"),
            ("GET", "/api/v2/provisionerkeys"),
            ("GET", "/api/v2/entitlements"),
            ("GET", "/api/v2"),
        ];
        let fault = match fault {
            0 => SimFault::status(500, "Internal error.", "on purpose"),
            1 => SimFault::html(502),
            2 => SimFault::rate_limited(Duration::from_secs(1)),
            3 => SimFault::Reset,
            4 => SimFault::ResetAfter,
            _ => SimFault::Latency(Duration::from_millis(2500)),
        };
        let (method, path) = calls[usize::from(call)];
        self.sim.fault(method, path, fault, Some(u32::from(times)));
    }

    pub fn trouble_database(&mut self, trouble: u8, time: Duration) {
        let Some(based) = &self.based else { return };
        let trouble = match trouble {
            0 => ProxyFault::Close,
            1 => ProxyFault::Hang,
            2 => ProxyFault::CutBefore("COMMIT"),
            3 => ProxyFault::CutAfter("COMMIT"),
            _ => ProxyFault::SilentAfter("COMMIT"),
        };
        based.proxy.set(trouble);
        let proxy = based.proxy.clone();
        self.passing.spawn(async move {
            tokio::time::sleep(time).await;
            proxy.set(ProxyFault::None);
        });
    }
}
