//! Organizations, in which provisioners live.

use serde::Deserialize;

use crate::{call::Request, client::Client, decode, error::Error};

/// An organization.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Organization {
    /// Its uuid.
    pub id: String,
    /// Its name.
    pub name: String,
    /// Its name for people.
    #[serde(default, deserialize_with = "decode::or_default")]
    pub display_name: String,
    /// Whether it is the one that `default` stands for.
    #[serde(default, deserialize_with = "decode::or_default")]
    pub is_default: bool,
}

impl Client {
    /// All organizations that this credential may see.
    pub async fn organizations(&self) -> Result<Vec<Organization>, Error> {
        self.list(Request::get("list organizations").at("organizations")).await
    }

    /// One organization, by uuid, by name, or as `default`.
    pub async fn organization(&self, organization: &str) -> Result<Organization, Error> {
        self.fetch(Request::get("get organization").at("organizations").part(organization)).await
    }
}
