//! Objects that are made once for each thread: a control plane is large, and a search looks at millions.

use std::{
    cell::RefCell,
    ops::{Deref, DerefMut},
};

use coder_k8s_api::CoderControlPlane;

thread_local! {
    static FREE: RefCell<Vec<CoderControlPlane>> = const { RefCell::new(Vec::new()) };
}

/// An object that goes back to the pool when it is dropped. Whoever takes it sets every field that it depends on.
pub struct Pooled(Option<CoderControlPlane>);

impl Pooled {
    pub fn take(new: impl FnOnce() -> CoderControlPlane) -> Self {
        Self(Some(FREE.with_borrow_mut(Vec::pop).unwrap_or_else(new)))
    }
}

impl Deref for Pooled {
    type Target = CoderControlPlane;

    fn deref(&self) -> &CoderControlPlane {
        self.0.as_ref().unwrap_or_else(|| panic!("an object is taken from the pool until it is dropped"))
    }
}

impl DerefMut for Pooled {
    fn deref_mut(&mut self) -> &mut CoderControlPlane {
        self.0.as_mut().unwrap_or_else(|| panic!("an object is taken from the pool until it is dropped"))
    }
}

impl Drop for Pooled {
    fn drop(&mut self) {
        FREE.with_borrow_mut(|free| free.extend(self.0.take()));
    }
}
