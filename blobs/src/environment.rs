//! Credentials and endpoints, by each cloud's own conventions.
//!
//! The manifest and the fleet hold none. What the library reads of the environment by itself is
//! handed to it here, from an [`Environment`] that tests can make; AWS's profiles and Azure's
//! connection strings, which it does not read, are read here.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::PathBuf;

/// The variables that say who we are. Printing it shows names only.
#[derive(Clone, Default)]
pub struct Environment(BTreeMap<String, String>);

impl Environment {
    /// The variables of this process; those that are no text are left out.
    pub fn of_process() -> Self {
        Self(
            std::env::vars_os()
                .filter_map(|(name, value)| {
                    Some((name.into_string().ok()?, value.into_string().ok()?))
                })
                .collect(),
        )
    }

    /// These variables and no others.
    pub fn of<N: Into<String>, V: Into<String>>(
        variables: impl IntoIterator<Item = (N, V)>,
    ) -> Self {
        let pairs = variables.into_iter();
        Self(
            pairs
                .map(|(name, value)| (name.into(), value.into()))
                .collect(),
        )
    }

    /// The value of a variable that says something.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.0
            .get(name)
            .map(String::as_str)
            .filter(|value| !value.is_empty())
    }

    /// The variables whose names begin with `prefix`, in lower case as the library's keys are.
    pub(crate) fn beginning(&self, prefix: &str) -> impl Iterator<Item = (String, &str)> {
        self.0
            .iter()
            .filter(move |(name, value)| name.starts_with(prefix) && !value.is_empty())
            .map(|(name, value)| (name.to_ascii_lowercase(), value.as_str()))
    }

    /// AWS's profile, from the shared files: the one that `AWS_PROFILE` names, which must be there,
    /// else `default`, which need not be.
    pub(crate) fn aws_profile(&self) -> Result<Option<AwsProfile>, String> {
        let named = self.get("AWS_PROFILE");
        let name = named.unwrap_or("default");
        let file = |variable: &str, usual: &str| {
            let path = match (self.get(variable), self.get("HOME")) {
                (Some(path), _) => PathBuf::from(path),
                (None, Some(home)) => PathBuf::from(home).join(".aws").join(usual),
                (None, None) => return BTreeMap::new(),
            };
            fs::read_to_string(path).map_or_else(|_| BTreeMap::new(), |text| section(&text, name))
        };
        // The file of credentials wins where both say something.
        let mut found = file("AWS_CONFIG_FILE", "config");
        found.extend(file("AWS_SHARED_CREDENTIALS_FILE", "credentials"));
        if found.is_empty() && named.is_some() {
            return Err(format!("AWS_PROFILE names {name}, which no file has"));
        }
        let has_keys = found.contains_key("aws_access_key_id");
        if named.is_some() && !has_keys {
            return Err(format!(
                "the profile {name} has no aws_access_key_id: of a role or single sign-on, put the \
                 temporary keys into the environment"
            ));
        }
        Ok((!found.is_empty()).then_some(AwsProfile(found)))
    }

    /// What `AZURE_STORAGE_CONNECTION_STRING` says, if it is set.
    pub(crate) fn azure_connection(&self) -> Result<Option<AzureConnection>, String> {
        self.get("AZURE_STORAGE_CONNECTION_STRING")
            .map(AzureConnection::parse)
            .transpose()
    }
}

impl fmt::Debug for Environment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

/// A profile of AWS's shared files.
pub(crate) struct AwsProfile(BTreeMap<String, String>);

impl AwsProfile {
    pub(crate) fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key).map(String::as_str)
    }
}

/// The keys of one section of an AWS file; `[profile x]` and `[x]` are the same.
fn section(text: &str, wanted: &str) -> BTreeMap<String, String> {
    let mut inside = false;
    let mut found = BTreeMap::new();
    for line in text.lines().map(str::trim) {
        if let Some(name) = line.strip_prefix('[').and_then(|l| l.strip_suffix(']')) {
            let name = name.trim();
            let name = name.strip_prefix("profile ").unwrap_or(name);
            inside = name.trim() == wanted;
        } else if inside
            && !line.starts_with(['#', ';'])
            && let Some((key, value)) = line.split_once('=')
        {
            found.insert(key.trim().to_ascii_lowercase(), value.trim().to_owned());
        }
    }
    found
}

/// Azure's connection string, read apart.
#[derive(Default)]
pub(crate) struct AzureConnection {
    pub(crate) account: Option<String>,
    pub(crate) key: Option<String>,
    pub(crate) sas: Option<String>,
    pub(crate) endpoint: Option<String>,
}

impl AzureConnection {
    /// The error never holds the text.
    fn parse(text: &str) -> Result<Self, String> {
        let mut connection = Self::default();
        let (mut suffix, mut protocol) = ("core.windows.net", "https");
        for pair in text
            .split(';')
            .map(str::trim)
            .filter(|pair| !pair.is_empty())
        {
            let (name, value) = pair
                .split_once('=')
                .ok_or("AZURE_STORAGE_CONNECTION_STRING is not name=value;…")?;
            let owned = Some(value.to_owned());
            match name.to_ascii_lowercase().as_str() {
                "accountname" => connection.account = owned,
                "accountkey" => connection.key = owned,
                "sharedaccesssignature" => connection.sas = owned,
                "blobendpoint" => connection.endpoint = owned,
                "endpointsuffix" => suffix = value,
                "defaultendpointsprotocol" => protocol = value,
                "usedevelopmentstorage" => {
                    return Err("UseDevelopmentStorage: spell the endpoint and key out".to_owned());
                }
                _ => {}
            }
        }
        if let (Some(account), None) = (&connection.account, &connection.endpoint) {
            connection.endpoint = Some(format!("{protocol}://{account}.blob.{suffix}"));
        }
        if connection.endpoint.is_none() {
            let said = "AZURE_STORAGE_CONNECTION_STRING names neither account nor endpoint";
            return Err(said.to_owned());
        }
        Ok(connection)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILES: &str = "; c\n[default]\naws_access_key_id = A\n aws_secret_access_key=B=\n\
                         [profile  x]\nregion= eu\n[y]\nregion=us\n";

    #[test]
    fn a_profile_is_found_in_either_form() {
        assert_eq!(section(FILES, "default")["aws_secret_access_key"], "B=");
        assert_eq!(section(FILES, "x")["region"], "eu");
        assert_eq!(section(FILES, "y")["region"], "us");
        assert!(section(FILES, "z").is_empty());
    }

    #[test]
    fn a_named_profile_must_be_there_and_hold_keys() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("credentials");
        fs::write(&file, FILES).unwrap();
        let profile = |name: &str| {
            let mut variables = vec![("AWS_SHARED_CREDENTIALS_FILE", file.to_str().unwrap())];
            if !name.is_empty() {
                variables.push(("AWS_PROFILE", name));
            }
            Environment::of(variables).aws_profile()
        };
        let found = profile("").unwrap().unwrap();
        assert_eq!(found.get("aws_access_key_id"), Some("A"));
        assert!(profile("z").err().unwrap().contains("no file has"));
        assert!(profile("x").err().unwrap().contains("no aws_access_key_id"));
        assert!(Environment::default().aws_profile().unwrap().is_none());
    }

    /// Guards promise 10.
    #[test]
    fn nothing_prints_a_value() {
        let environment = Environment::of([("AWS_SECRET_ACCESS_KEY", "hunter2")]);
        assert_eq!(format!("{environment:?}"), "{\"AWS_SECRET_ACCESS_KEY\"}");
        let refused = AzureConnection::parse("hunter2").err().unwrap();
        assert!(!refused.contains("hunter2"));
    }

    #[test]
    fn a_connection_string_is_read_apart() {
        let parse = |text| AzureConnection::parse(text).ok().unwrap();
        let full =
            parse("DefaultEndpointsProtocol=https;AccountName=a;AccountKey=k==;EndpointSuffix=x.y");
        assert_eq!(full.endpoint.as_deref(), Some("https://a.blob.x.y"));
        assert_eq!(full.key.as_deref(), Some("k=="));
        let sas = parse("BlobEndpoint=http://h/a;SharedAccessSignature=sv=1&sig=2");
        assert_eq!(sas.sas.as_deref(), Some("sv=1&sig=2"));
        assert!(AzureConnection::parse("AccountKey=k").is_err());
    }
}
