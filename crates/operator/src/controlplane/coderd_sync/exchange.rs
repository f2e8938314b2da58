//! One exchange with the coderd of a control plane, in order: identify the server, verify the token, apply the license, read
//! the entitlements.
//!
//! A part that fails does not stop later parts that do not need it. The exchange writes only its report; failures that are
//! worth a condition are in it.

use coder_k8s_api::{EntitlementsStatus, Reason};
use coder_k8s_coderd::{Client, ErrorKind, IdentifiedServer, Server};
use coder_k8s_core::{
    controlplane::coderd::{
        self,
        access::{self, Access},
        license::License,
    },
    outcome::{Blocker, Retry},
};
use jiff::Timestamp;
use kube::Resource;

use super::{Plane, SyncState, license, token};
use crate::coderd::{blocker_of, feature_state, targets};

pub(super) struct Exchange<'a> {
    pub(super) state: &'a mut SyncState,
    /// Whether the spec, a Secret or the server's pods changed since the last exchange.
    pub(super) has_changed: bool,
    pub(super) plane: Plane<'a>,
}

impl Exchange<'_> {
    /// Runs the exchange. `verify`: the token and the license are verified, not only what is still to be applied. The error
    /// says when to retry; what failed is in the report.
    pub(super) async fn run(&mut self, verify: bool) -> Result<(), Retry> {
        let Some(server) = self.server().await? else { return Ok(()) };
        let (client, token_retry) = if verify {
            let Some(identified) = self.identify(&server).await? else { return Ok(()) };
            self.verify_token(&identified).await
        } else if license::is_pending(self.state, self.plane.object) {
            (self.reuse_token(&server).await?, None)
        } else {
            (None, None)
        };
        let license_retry = match &client {
            Some(client) if verify || license::is_pending(self.state, self.plane.object) => {
                license::sync(self, client).await
            }
            _ => None,
        };
        // coderd serves entitlements without a token, so that they are read whatever became of it.
        let entitlements = self.refresh_entitlements(&server).await;
        match token_retry.or(license_retry) {
            Some(retry) => Err(retry),
            None => entitlements,
        }
    }

    /// The server without a credential. None: the spec gives no usable address, and the report says why.
    async fn server(&mut self) -> Result<Option<Server>, Retry> {
        if self.state.server.is_none() {
            match targets::server_of(self.plane.object, self.plane.ctx).await {
                Ok(server) => self.state.server = Some(server),
                Err(blocker) if blocker.retry == Retry::OnChange => {
                    self.state.report.access = Some(Access::Refused(blocker));
                }
                Err(blocker) => {
                    tracing::warn!(reason = %blocker.reason, "{}", blocker.message);
                    return Err(blocker.retry);
                }
            }
        }
        Ok(self.state.server.clone())
    }

    /// Asks the server which deployment it is. None: it is another one than the token belongs to.
    ///
    /// Only an `apiURL` is checked. The control plane's own Service leads to its own pods, whose deployment changes with their
    /// database, and an edit of the spec or of a Secret may be a person's decision to move.
    async fn identify(&mut self, server: &Server) -> Result<Option<IdentifiedServer>, Retry> {
        let identified = match server.identify().await {
            Ok(identified) => identified,
            Err(error) => return Err(self.unreachable(&blocker_of(&error))),
        };
        let known = self.plane.object.status.as_ref().and_then(|status| status.deployment_id.as_ref());
        let by_address = self.plane.object.spec.operator_access.api_url.is_some();
        if by_address && !self.has_changed && known.is_some_and(|known| known != identified.deployment_id()) {
            let message = "another deployment answers at operatorAccess.apiURL than the one that the operator token belongs \
                           to, and the token was not sent: supply a token of this deployment";
            let blocker = Blocker::until_change(Reason::DeploymentChanged, message);
            self.state.report.access = Some(Access::Refused(blocker));
            return Ok(None);
        }
        self.state.report.server = Some(coderd::ReportedServer {
            version: identified.version().to_owned(),
            deployment_id: identified.deployment_id().to_owned(),
        });
        Ok(Some(identified))
    }

    /// Runs the token's protocol. Returns a client if coderd accepts the token, and when to retry.
    async fn verify_token(&mut self, server: &IdentifiedServer) -> (Option<Client>, Option<Retry>) {
        let (report, client) = token::sync(self, server).await;
        let state = &mut *self.state;
        state.replaced_refused = report.replaced_refused;
        state.awaits_record = report.awaits_record;
        if let Some(grant) = report.grant {
            state.report.grant = Some(grant);
            // An earlier revocation says nothing about a token that was created after it.
            state.report.revocation = None;
        }
        if let Some(revocation) = report.revocation {
            state.report.revocation = Some(revocation);
        }
        if let Some(access) = report.access {
            if let (true, Access::Refused(blocker) | Access::Degraded(blocker)) =
                (report.blocks_license, &access)
            {
                let blocker = blocker.clone();
                self.block_license(&blocker);
            }
            self.state.report.access = Some(access);
        }
        for event in &report.events {
            tracing::warn!("{}", event.message);
            self.plane.ctx.events.publish(&self.plane.object.object_ref(&()), event).await;
        }
        (client.filter(|_| report.is_usable), report.retry)
    }

    /// A client with the token of the last verification, for a license that is still to be applied.
    async fn reuse_token(&mut self, server: &Server) -> Result<Option<Client>, Retry> {
        let Some(token) = self.state.token.clone() else { return Ok(None) };
        let Some(identified) = self.identify(server).await? else { return Ok(None) };
        Ok(token::client(&identified, &token).ok())
    }

    /// Reports that coderd does not answer. The token and the license stay as they are.
    pub(super) fn unreachable(&mut self, blocker: &Blocker) -> Retry {
        if self.state.token.is_some() || access::has_token_source(self.plane.object) {
            self.state.report.access = Some(Access::unreachable(blocker));
            self.block_license(blocker);
        }
        blocker.retry
    }

    fn block_license(&mut self, blocker: &Blocker) {
        if self.plane.object.spec.license_secret_ref.is_some()
            && !license::is_applied(self.state, self.plane.object)
        {
            self.state.report.license = Some(License::Blocker(blocker.clone()));
        }
    }

    async fn refresh_entitlements(&mut self, server: &Server) -> Result<(), Retry> {
        let asked_at = Timestamp::now();
        let answer = match server.entitlements().await {
            Ok(answer) => Some(answer),
            Err(error) if error.kind == ErrorKind::NotSupported => None,
            Err(error) => return Err(self.unreachable(&blocker_of(&error))),
        };
        let answer = answer.map(|found| EntitlementsStatus {
            has_license: found.has_license,
            trial: found.trial,
            features: found
                .features
                .iter()
                .map(|(name, feature)| (name.clone(), feature_state(feature).as_str().to_owned()))
                .collect(),
            warnings: found.warnings,
            errors: found.errors,
        });
        let before = self.state.report.entitlements.take();
        self.state.report.entitlements = Some(coderd::entitlements(answer, before.as_ref(), asked_at));
        Ok(())
    }
}
