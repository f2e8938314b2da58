//! The kinds of `coder.com/v1alpha1`, in one list.

/// The enum with its lists, so that a variant that is missing in one does not compile.
macro_rules! coder_kinds {
    ($($kind:ident $name:literal $resource:literal;)+) => {
        /// A kind whose objects the operator reconciles. Code that has to know the kinds matches on it without a wildcard, so
        /// that the compiler lists what a new kind needs.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum CoderKind {
            $(#[doc = $name] $kind,)+
        }

        impl CoderKind {
            /// Every kind.
            pub const ALL: &'static [Self] = &[$(Self::$kind,)+];
            /// The resources of the kinds, as RBAC and URLs name them.
            pub const RESOURCES: &'static [&'static str] = &[$($resource,)+];
            /// Their subresource of the status.
            pub const STATUSES: &'static [&'static str] = &[$(concat!($resource, "/status"),)+];
            /// Their subresource of finalizers, which exists in RBAC only.
            pub const FINALIZERS: &'static [&'static str] = &[$(concat!($resource, "/finalizers"),)+];

            /// The `kind` of its objects.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$kind => $name,)+
                }
            }
        }
    };
}

coder_kinds! {
    ControlPlane "CoderControlPlane" "codercontrolplanes";
    Provisioner "CoderProvisioner" "coderprovisioners";
    WorkspaceProxy "CoderWorkspaceProxy" "coderworkspaceproxies";
}

impl CoderKind {
    /// The inverse of [`Self::as_str`].
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|kind| kind.as_str() == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_names_are_those_of_the_crds() {
        let crds = crate::crds();
        let kinds: Vec<_> = crds.iter().map(|crd| crd.spec.names.kind.as_str()).collect();
        let resources: Vec<_> = crds.iter().map(|crd| crd.spec.names.plural.as_str()).collect();
        assert_eq!(kinds, CoderKind::ALL.iter().map(|kind| kind.as_str()).collect::<Vec<_>>());
        assert_eq!(resources, CoderKind::RESOURCES);
    }
}
