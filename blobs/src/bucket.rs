//! A cell's place for objects, opened, and the few things that are done with one object.
//!
//! Whatever the library can do that is not needed here cannot be done through here: there is no
//! listing to walk a bucket by, no deleting by prefix. Objects are named by keys that the ledger
//! has.

use std::fmt;
use std::path::{Path as FilePath, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::stream::BoxStream;
use monarch_config::BlobPlace;
use object_store::aws::{AmazonS3, AmazonS3Builder, AmazonS3ConfigKey};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::gcp::{GcpCredential, GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{
    Attributes, BackoffConfig, ClientOptions, CopyOptions, GetOptions, ObjectMeta, ObjectStore,
    ObjectStoreExt, PutMode, PutMultipartOptions, PutOptions, PutPayload, RetryConfig,
    StaticCredentialProvider, WriteMultipart,
};

use crate::environment::Environment;
use crate::error::{BlobError, Doing, Fault, FaultKind};
use crate::key::{BlobKey, Kind, Spelling, spell};
use crate::transport::{Connector, Pressure};

/// What a store said of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Stat {
    /// Its size in bytes.
    pub(crate) size: u64,
    /// Size, ETag and time of the last change: another one, another object.
    pub(crate) tag: String,
    /// The ETag by itself.
    pub(crate) e_tag: Option<String>,
}

impl Stat {
    fn of(meta: &ObjectMeta) -> Self {
        let e_tag = meta.e_tag.as_deref().unwrap_or_default();
        let changed = meta.last_modified.timestamp_micros();
        Self {
            size: meta.size,
            tag: format!("{} {e_tag} {changed}", meta.size),
            e_tag: meta.e_tag.clone(),
        }
    }
}

/// An object being read.
pub(crate) struct Reading {
    pub(crate) stat: Stat,
    pub(crate) attributes: Attributes,
    /// Its bytes, all of them in order; a connection that is cut is taken up again by the library
    /// where it was, if the object is still the same.
    pub(crate) bytes: ByteStream,
}

/// The bytes of an object.
pub(crate) type ByteStream = BoxStream<'static, object_store::Result<Bytes>>;

/// Where a bucket is, for the question whether two places are one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Location {
    service: String,
    bucket: String,
    /// Empty, or ends with a slash.
    prefix: String,
}

impl Location {
    /// Whether an object of one may be an object of the other too.
    pub(crate) fn overlaps(&self, other: &Self) -> bool {
        self.service == other.service
            && self.bucket == other.bucket
            && (self.prefix.starts_with(&other.prefix) || other.prefix.starts_with(&self.prefix))
    }
}

/// A cell's bucket or folder. Cheap to clone. Printing it shows the place, and no credential.
#[derive(Clone)]
pub struct Bucket {
    inner: Arc<Inner>,
}

struct Inner {
    kind: Kind,
    place: String,
    location: Location,
    store: Arc<dyn ObjectStore>,
    /// The same service without the bucket, for keys that begin with a slash.
    service: Option<Arc<dyn ObjectStore>>,
    /// What an S3 client for another bucket of the service is made from.
    s3: Option<AmazonS3Builder>,
    /// The folder that must be there.
    folder: Option<PathBuf>,
    pressure: Arc<Pressure>,
}

impl fmt::Debug for Bucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Bucket({})", self.inner.place)
    }
}

impl fmt::Display for Bucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.inner.place)
    }
}

/// What is needed to open a place.
struct Opening<'a> {
    place: String,
    bucket: String,
    prefix: String,
    environment: &'a Environment,
    pressure: Arc<Pressure>,
}

impl Bucket {
    /// Opens a place, with the credentials that `environment` has for its cloud. Nothing is asked
    /// of it yet, but the region of a bucket on AWS: whether it is there is a matter of preflight.
    ///
    /// # Errors
    /// [`BlobError::Open`] when the place cannot be understood or the credentials cannot be read.
    pub async fn open(place: &BlobPlace, environment: &Environment) -> Result<Self, BlobError> {
        let url = match place {
            BlobPlace::FilePath(path) => return Self::files(path, path.display().to_string()),
            BlobPlace::Url(url) => url,
        };
        let refused = |why: String| BlobError::Open {
            place: url.clone(),
            why,
        };
        let (scheme, rest) = url
            .split_once("://")
            .ok_or_else(|| refused("no url".to_owned()))?;
        if scheme == "file" {
            return Self::files(FilePath::new(rest), url.clone());
        }
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let prefix = prefix.trim_matches('/');
        let opening = Opening {
            place: url.clone(),
            bucket: bucket.to_owned(),
            prefix: if prefix.is_empty() {
                String::new()
            } else {
                format!("{prefix}/")
            },
            environment,
            pressure: Arc::default(),
        };
        let opened = match scheme {
            "s3" => opening.s3().await,
            "gs" => opening.gcs(),
            "az" => opening.azure(),
            other => Err(format!("{other} is no kind of store")),
        };
        opened.map_err(refused)
    }

    /// A folder. What is written is synced to disk before it counts.
    fn files(path: &FilePath, place: String) -> Result<Self, BlobError> {
        let opened = path
            .canonicalize()
            .map_err(object_store_io)
            .and_then(|folder| {
                let store = LocalFileSystem::new_with_prefix(&folder)?.with_fsync(true);
                Ok((folder, store))
            });
        let (folder, store) = opened.map_err(|error| BlobError::Open {
            place: place.clone(),
            why: Fault::of(&error).to_string(),
        })?;
        let location = Location {
            service: "file".to_owned(),
            bucket: String::new(),
            prefix: format!("{}/", folder.display()),
        };
        Ok(Self {
            inner: Arc::new(Inner {
                kind: Kind::Files,
                place,
                location,
                store: Arc::new(store),
                service: None,
                s3: None,
                folder: Some(folder),
                pressure: Arc::default(),
            }),
        })
    }

    /// How often the store has asked for fewer requests.
    pub fn slow_downs(&self) -> u64 {
        self.inner.pressure.slow_downs()
    }

    pub(crate) fn kind(&self) -> Kind {
        self.inner.kind
    }

    pub(crate) fn place(&self) -> &str {
        &self.inner.place
    }

    pub(crate) fn location(&self) -> &Location {
        &self.inner.location
    }

    /// The folder of a place that is one.
    pub(crate) fn folder(&self) -> Option<&FilePath> {
        self.inner.folder.as_deref()
    }

    /// Whether the bucket can hold the key, without asking it.
    ///
    /// # Errors
    /// [`BlobError::Refused`].
    pub fn check_key(&self, key: &BlobKey) -> Result<(), BlobError> {
        self.spelled(key).map(|_| ())
    }

    /// What the bucket has under the key.
    pub(crate) async fn look(&self, key: &BlobKey) -> Result<Option<Stat>, BlobError> {
        let (store, path) = self.spelled(key)?;
        match store.head(&path).await {
            Ok(meta) => Ok(Some(Stat::of(&meta))),
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(self.failed(Doing::Look, key, &error)),
        }
    }

    /// Begins to read the object, if there is one.
    pub(crate) async fn read(&self, key: &BlobKey) -> Result<Option<Reading>, BlobError> {
        let (store, path) = self.spelled(key)?;
        match store.get_opts(&path, GetOptions::default()).await {
            Ok(result) => Ok(Some(Reading {
                stat: Stat::of(&result.meta),
                attributes: result.attributes.clone(),
                bytes: result.into_stream(),
            })),
            Err(error @ object_store::Error::NotFound { .. }) if !self.is_gone(&error) => Ok(None),
            Err(error) => Err(self.failed(Doing::Read, key, &error)),
        }
    }

    /// Whether it is the bucket that is not there: then no key is missing, all of them are unknown.
    fn is_gone(&self, error: &object_store::Error) -> bool {
        match self.folder() {
            Some(folder) => !folder.is_dir(),
            None => Fault::of(error)
                .code
                .is_some_and(|code| matches!(code.as_str(), "NoSuchBucket" | "ContainerNotFound")),
        }
    }

    /// Writes a small object. With `create`, only if there is none: then a conflict is told as
    /// such, where the store can tell. Returns the ETag.
    pub(crate) async fn put(
        &self,
        key: &BlobKey,
        payload: PutPayload,
        attributes: Attributes,
        create: bool,
    ) -> Result<Option<String>, BlobError> {
        let (store, path) = self.spelled(key)?;
        let options = PutOptions {
            mode: if create {
                PutMode::Create
            } else {
                PutMode::Overwrite
            },
            attributes: self.holdable(attributes),
            ..PutOptions::default()
        };
        let put = store.put_opts(&path, payload, options).await;
        put.map(|put| put.e_tag)
            .map_err(|error| self.failed(Doing::Write, key, &error))
    }

    /// Begins to write a large object in parts.
    pub(crate) async fn put_in_parts(
        &self,
        key: &BlobKey,
        attributes: Attributes,
        part_bytes: usize,
    ) -> Result<WriteMultipart, BlobError> {
        let (store, path) = self.spelled(key)?;
        let options = PutMultipartOptions {
            attributes: self.holdable(attributes),
            ..PutMultipartOptions::default()
        };
        let upload = store.put_multipart_opts(&path, options).await;
        upload
            .map(|upload| WriteMultipart::new_with_chunk_size(upload, part_bytes))
            .map_err(|error| self.failed(Doing::Write, key, &error))
    }

    /// Deletes the object; one that is not there is deleted already. A versioned bucket keeps the
    /// object below a delete marker, since no version is named.
    pub(crate) async fn delete(&self, key: &BlobKey) -> Result<(), BlobError> {
        let (store, path) = self.spelled(key)?;
        match store.delete(&path).await {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(self.failed(Doing::Delete, key, &error)),
        }
    }

    /// A way to have the service copy from `source` to this bucket, with this bucket's credential.
    /// None where the library has no request for it: between services, between containers of Azure
    /// and buckets of Google, and for files, where a copy would be a second name of one file.
    pub(crate) fn copier_from(&self, source: &Self) -> Option<ServiceCopy> {
        if self.inner.location.service != source.inner.location.service {
            return None;
        }
        let same_bucket = self.inner.location.bucket == source.inner.location.bucket;
        let store: Arc<dyn ObjectStore> = match (self.kind(), &self.inner.s3) {
            (Kind::Files, _) => return None,
            (_, _) if same_bucket => Arc::clone(&self.inner.store),
            // The library writes "bucket/key" of its own bucket as what to copy from, and the key
            // to copy to below its endpoint: so its bucket is the source's, and its endpoint ours.
            (Kind::S3, Some(builder)) => {
                let endpoint = format!(
                    "{}/{}",
                    self.inner.location.service, self.inner.location.bucket
                );
                let client = builder
                    .clone()
                    .with_bucket_name(&source.inner.location.bucket)
                    .with_config(AmazonS3ConfigKey::S3Endpoint, endpoint)
                    .with_virtual_hosted_style_request(true)
                    .build()
                    .ok()?;
                Arc::new(client)
            }
            _ => return None,
        };
        Some(ServiceCopy {
            store,
            sink: self.clone(),
            source: source.clone(),
        })
    }

    /// What of an object's attributes this store can keep: files none; Azure only metadata that is
    /// ASCII, in whose place the library panics otherwise.
    fn holdable(&self, attributes: Attributes) -> Attributes {
        match self.kind() {
            Kind::Files => Attributes::new(),
            Kind::Azure => attributes
                .into_iter()
                .filter(|(_, value)| value.is_ascii())
                .map(|(name, value)| (name.clone(), value.clone()))
                .collect(),
            Kind::S3 | Kind::Gcs => attributes,
        }
    }

    pub(crate) fn failed(
        &self,
        doing: Doing,
        key: &BlobKey,
        error: &object_store::Error,
    ) -> BlobError {
        BlobError::Object {
            doing,
            place: self.inner.place.clone(),
            key: key.clone(),
            fault: Fault::of(error),
        }
    }

    fn spelled(&self, key: &BlobKey) -> Result<(&Arc<dyn ObjectStore>, Path), BlobError> {
        let Location { bucket, prefix, .. } = &self.inner.location;
        let prefix = match self.kind() {
            Kind::Files => "",
            _ => prefix,
        };
        let refused = |refusal| BlobError::Refused {
            place: self.inner.place.clone(),
            key: key.clone(),
            refusal,
        };
        match spell(self.kind(), bucket, prefix, key).map_err(refused)? {
            Spelling::InBucket(path) => Ok((&self.inner.store, path)),
            Spelling::InService(path) => {
                let store = self.inner.service.as_ref().unwrap_or(&self.inner.store);
                Ok((store, path))
            }
        }
    }
}

/// A service's own copy between two of its buckets.
pub(crate) struct ServiceCopy {
    store: Arc<dyn ObjectStore>,
    source: Bucket,
    sink: Bucket,
}

impl ServiceCopy {
    /// The largest object that S3 copies in one request.
    pub(crate) const LARGEST: u64 = 5 << 30;

    /// Copies one object, with its metadata. A key that begins with a slash is not for this way.
    pub(crate) async fn copy(&self, key: &BlobKey) -> Result<(), BlobError> {
        let from = in_bucket(&self.source, key)?;
        let to = in_bucket(&self.sink, key)?;
        let copied = self
            .store
            .copy_opts(&from, &to, CopyOptions::default())
            .await;
        copied.map_err(|error| self.sink.failed(Doing::Copy, key, &error))
    }
}

fn in_bucket(bucket: &Bucket, key: &BlobKey) -> Result<Path, BlobError> {
    let Location {
        bucket: name,
        prefix,
        ..
    } = bucket.location();
    match spell(bucket.kind(), name, prefix, key) {
        Ok(Spelling::InBucket(path)) => Ok(path),
        Ok(Spelling::InService(_)) | Err(_) => Err(BlobError::Object {
            doing: Doing::Copy,
            place: bucket.place().to_owned(),
            key: key.clone(),
            fault: Fault {
                kind: FaultKind::Unsupported,
                status: None,
                code: None,
            },
        }),
    }
}

fn object_store_io(error: std::io::Error) -> object_store::Error {
    object_store::Error::Generic {
        store: "file",
        source: Box::new(error),
    }
}

/// A few quick tries of one request; whoever asked has patience of its own beyond that.
fn retries() -> RetryConfig {
    RetryConfig {
        backoff: BackoffConfig {
            init_backoff: Duration::from_millis(100),
            max_backoff: Duration::from_secs(5),
            base: 2.0,
        },
        max_retries: 4,
        retry_timeout: Duration::from_secs(60),
    }
}

impl Opening<'_> {
    fn connector(&self) -> Result<Connector, String> {
        Connector::new(self.environment.get("AWS_CA_BUNDLE"), &self.pressure)
            .map_err(ToOwned::to_owned)
    }

    /// An endpoint that is named as plain HTTP was meant.
    fn client(endpoint: Option<&str>) -> ClientOptions {
        let plain = endpoint.is_some_and(|endpoint| endpoint.starts_with("http://"));
        ClientOptions::new().with_allow_http(plain)
    }

    fn finished(
        self,
        kind: Kind,
        service: String,
        store: Arc<dyn ObjectStore>,
        s3: Option<(AmazonS3Builder, Arc<dyn ObjectStore>)>,
    ) -> Bucket {
        let (s3, root) = s3.unzip();
        Bucket {
            inner: Arc::new(Inner {
                kind,
                place: self.place,
                location: Location {
                    service,
                    bucket: self.bucket,
                    prefix: self.prefix,
                },
                store,
                service: root,
                s3,
                folder: None,
                pressure: self.pressure,
            }),
        }
    }

    async fn s3(self) -> Result<Bucket, String> {
        let mut builder = AmazonS3Builder::new()
            .with_retry(retries())
            .with_http_connector(self.connector()?);
        for (name, value) in self.environment.beginning("AWS_") {
            if let Ok(key) = name.parse::<AmazonS3ConfigKey>() {
                builder = builder.with_config(key, value);
            }
        }
        builder = self.with_profile(builder)?;
        let said = |key| builder.get_config_value(&key);
        let endpoint = said(AmazonS3ConfigKey::S3Endpoint).or(said(AmazonS3ConfigKey::Endpoint));
        let region = match &endpoint {
            Some(_) => said(AmazonS3ConfigKey::Region),
            None => match self.connector()?.region_of(&self.bucket).await {
                Some(region) => Some(region),
                None => said(AmazonS3ConfigKey::Region).or(said(AmazonS3ConfigKey::DefaultRegion)),
            },
        };
        let region = region.unwrap_or_else(|| "us-east-1".to_owned());
        let service = endpoint.map_or_else(
            || format!("https://s3.{region}.amazonaws.com"),
            |endpoint| endpoint.trim_end_matches('/').to_owned(),
        );
        let builder = builder
            .with_region(region)
            .with_client_options(Self::client(Some(&service)))
            .with_config(AmazonS3ConfigKey::S3Endpoint, &service)
            .with_bucket_name(&self.bucket)
            // By path, whatever the variables say: the buckets of a service then share its address.
            .with_virtual_hosted_style_request(false);
        let store = build_s3(builder.clone())?;
        // Without the bucket in the address, and deleting one by one: a request that deletes many
        // names the keys in its body, below the bucket.
        let root = build_s3(
            builder
                .clone()
                .with_virtual_hosted_style_request(true)
                .with_disable_bulk_delete(true),
        )?;
        Ok(self.finished(
            Kind::S3,
            service,
            Arc::new(store),
            Some((builder, Arc::new(root))),
        ))
    }

    /// The shared files are asked where the environment has no keys, and, unless it names a profile,
    /// no other way either.
    fn with_profile(&self, builder: AmazonS3Builder) -> Result<AmazonS3Builder, String> {
        const OTHER_WAYS: [&str; 3] = [
            "AWS_WEB_IDENTITY_TOKEN_FILE",
            "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
            "AWS_CONTAINER_CREDENTIALS_FULL_URI",
        ];
        let has = |name: &str| self.environment.get(name).is_some();
        let has_other_way = !has("AWS_PROFILE") && OTHER_WAYS.iter().any(|name| has(name));
        if has("AWS_ACCESS_KEY_ID") || has_other_way {
            return Ok(builder);
        }
        let Some(profile) = self.environment.aws_profile()? else {
            return Ok(builder);
        };
        let settings = [
            ("aws_access_key_id", AmazonS3ConfigKey::AccessKeyId),
            ("aws_secret_access_key", AmazonS3ConfigKey::SecretAccessKey),
            ("aws_session_token", AmazonS3ConfigKey::Token),
            ("region", AmazonS3ConfigKey::Region),
            ("endpoint_url", AmazonS3ConfigKey::Endpoint),
        ];
        Ok(settings.into_iter().fold(builder, |builder, (name, key)| {
            match (profile.get(name), builder.get_config_value(&key)) {
                (Some(value), None) => builder.with_config(key, value),
                _ => builder,
            }
        }))
    }

    fn gcs(self) -> Result<Bucket, String> {
        let mut builder = GoogleCloudStorageBuilder::new()
            .with_retry(retries())
            .with_http_connector(self.connector()?);
        for (name, value) in self.environment.beginning("GOOGLE_") {
            if let Ok(key) = name.parse::<GoogleConfigKey>() {
                builder = builder.with_config(key, value);
            }
        }
        // The variable of Google's own clients; what answers there asks for no token.
        if let Some(host) = self.environment.get("STORAGE_EMULATOR_HOST") {
            let url = if host.contains("://") {
                host.to_owned()
            } else {
                format!("http://{host}")
            };
            let nobody = GcpCredential {
                bearer: String::new(),
            };
            builder = builder
                .with_config(GoogleConfigKey::BaseUrl, url.trim_end_matches('/'))
                .with_credentials(Arc::new(StaticCredentialProvider::new(nobody)));
        }
        let service = builder
            .get_config_value(&GoogleConfigKey::BaseUrl)
            .unwrap_or_else(|| "https://storage.googleapis.com".to_owned());
        let store = builder
            .with_client_options(Self::client(Some(&service)))
            .with_bucket_name(&self.bucket)
            .build()
            .map_err(|_| "the credentials for Google Cloud Storage cannot be read".to_owned())?;
        Ok(self.finished(Kind::Gcs, service, Arc::new(store), None))
    }

    fn azure(self) -> Result<Bucket, String> {
        let mut builder = MicrosoftAzureBuilder::new()
            .with_retry(retries())
            .with_http_connector(self.connector()?);
        for (name, value) in self.environment.beginning("AZURE_") {
            if let Ok(key) = name.parse::<AzureConfigKey>() {
                builder = builder.with_config(key, value);
            }
        }
        if let Some(endpoint) = self.environment.get("IDENTITY_ENDPOINT") {
            builder = builder.with_msi_endpoint(endpoint);
        }
        if let Some(connection) = self.environment.azure_connection()? {
            let account = connection.account.clone().or_else(|| {
                let host = connection.endpoint.as_deref()?.split("://").nth(1)?;
                Some(host.split(['.', '/', ':']).next()?.to_owned())
            });
            let settings = [
                (AzureConfigKey::AccountName, account),
                (AzureConfigKey::AccessKey, connection.key),
                (AzureConfigKey::SasKey, connection.sas),
                (AzureConfigKey::Endpoint, connection.endpoint),
            ];
            for (key, value) in settings {
                if let Some(value) = value {
                    builder = builder.with_config(key, value);
                }
            }
        }
        let account = builder
            .get_config_value(&AzureConfigKey::AccountName)
            .ok_or(
                "no account: set AZURE_STORAGE_CONNECTION_STRING or AZURE_STORAGE_ACCOUNT_NAME",
            )?;
        let service = builder
            .get_config_value(&AzureConfigKey::Endpoint)
            .unwrap_or_else(|| format!("https://{account}.blob.core.windows.net"));
        let store = builder
            .with_client_options(Self::client(Some(&service)))
            .with_container_name(&self.bucket)
            .build()
            .map_err(|_| "the credentials for Azure cannot be read".to_owned())?;
        let service = service.trim_end_matches('/').to_owned();
        Ok(self.finished(Kind::Azure, service, Arc::new(store), None))
    }
}

fn build_s3(builder: AmazonS3Builder) -> Result<AmazonS3, String> {
    // What the library says may quote what it was given.
    builder
        .build()
        .map_err(|_| "the credentials for S3 cannot be read".to_owned())
}

impl Stat {
    /// Whether a bucket still has this very object under the key.
    pub(crate) fn is(&self, other: Option<&Stat>) -> bool {
        other.is_some_and(|other| other.tag == self.tag)
    }
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
