//! TLS for NBD, by rustls: certificates from a folder in the layout that qemu, nbdkit and libnbd use.
//!
//! The folder holds `server-cert.pem` (the server's certificate and what leads to its authority), `server-key.pem`, and,
//! where clients must show certificates of their own, `ca-cert.pem` (the authority that signs those) and, where some have been
//! revoked, `ca-crl.pem` (which). Whoever's authority has no list there is taken as not revoked, and a list that is out of date still
//! counts, as with qemu and nbdkit.
//!
//! TLS is demanded or absent, never optional: a client cannot be talked out of it by someone in the middle. There are no
//! pre-shared keys (GnuTLS' `keys.psk`), since rustls has none; use certificates.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};
use rustls::server::{VerifierBuilderError, WebPkiClientVerifier};
use rustls::{RootCertStore, ServerConfig};

/// Largest file that is read, bytes.
const FILE_MAX: u64 = 1 << 20;

/// Certificates and settings; shared by all connections.
#[derive(Clone, Debug)]
pub struct ServerTls {
    pub(super) config: Arc<ServerConfig>,
}

/// Why there is no TLS.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file is missing or cannot be read.
    #[error("{}: {source}; a certificates folder holds server-cert.pem, server-key.pem and, with client certificates, \
             ca-cert.pem", path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A file is too large to be what it should be.
    #[error("{}: {found} bytes, expected at most {FILE_MAX}", path.display())]
    TooLarge {
        /// Which.
        path: PathBuf,
        /// Its size.
        found: u64,
    },
    /// A file holds something else.
    #[error("{}: no {expected} in PEM format found: {reason}", path.display())]
    Pem {
        /// Which.
        path: PathBuf,
        /// What it should hold.
        expected: &'static str,
        /// What the parser said.
        reason: String,
    },
    /// Key and certificate are no use.
    #[error("the certificates in {} cannot be used: {reason}", folder.display())]
    Unusable {
        /// The folder.
        folder: PathBuf,
        /// What rustls said.
        reason: String,
    },
    /// The key cannot be read, or does not belong to the certificate.
    #[error(
        "{}: not a usable key for server-cert.pem: {reason}; an EC key that certtool has made may have to be rewritten: \
         openssl pkcs8 -topk8 -nocrypt -in server-key.pem", path.display()
    )]
    Key {
        /// The key's file.
        path: PathBuf,
        /// What rustls said.
        reason: String,
    },
    /// The folder is one of pre-shared keys.
    #[error(
        "{}: pre-shared keys are not supported (rustls has none): make certificates, for example with certtool, and \
         name their folder", .0.display()
    )]
    PreSharedKeys(PathBuf),
}

impl ServerTls {
    /// Reads the certificates in `folder`. With `verify_peer` only clients that show a certificate signed by
    /// `ca-cert.pem`, which `ca-crl.pem` (if there is one) does not revoke, are served.
    pub fn from_folder(folder: &Path, verify_peer: bool) -> Result<ServerTls, TlsError> {
        if !folder.join("server-cert.pem").exists() && (folder.is_file() || folder.join("keys.psk").exists())
        {
            return Err(TlsError::PreSharedKeys(folder.to_owned()));
        }
        let unusable = |reason: &dyn std::fmt::Display| TlsError::Unusable {
            folder: folder.to_owned(),
            reason: reason.to_string(),
        };
        let certificates = certificates(&folder.join("server-cert.pem"))?;
        let key_path = folder.join("server-key.pem");
        let key = PrivateKeyDer::from_pem_slice(&read(&key_path)?).map_err(|error| TlsError::Pem {
            path: key_path.clone(),
            expected: "private key",
            reason: error.to_string(),
        })?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ServerConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[&rustls::version::TLS13, &rustls::version::TLS12])
            .map_err(|error| unusable(&error))?;
        let builder = if verify_peer {
            let mut roots = RootCertStore::empty();
            for certificate in self::certificates(&folder.join("ca-cert.pem"))? {
                roots.add(certificate).map_err(|error| unusable(&error))?;
            }
            let revoked_path = folder.join("ca-crl.pem");
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
                .with_crls(revocations(&revoked_path)?)
                .allow_unknown_revocation_status()
                .build()
                .map_err(|error| match error {
                    VerifierBuilderError::InvalidCrl(why) => no_list(&revoked_path, format!("{why:?}")),
                    error => unusable(&error),
                })?;
            builder.with_client_cert_verifier(verifier)
        } else {
            builder.with_no_client_auth()
        };
        let config = builder
            .with_single_cert(certificates, key)
            .map_err(|error| TlsError::Key { path: key_path, reason: error.to_string() })?;
        Ok(ServerTls { config: Arc::new(config) })
    }
}

fn read(path: &Path) -> Result<Vec<u8>, TlsError> {
    let failed = |source| TlsError::Read { path: path.to_owned(), source };
    let found = std::fs::metadata(path).map_err(failed)?.len();
    if found > FILE_MAX {
        return Err(TlsError::TooLarge { path: path.to_owned(), found });
    }
    std::fs::read(path).map_err(failed)
}

/// The lists of revoked certificates in a file that need not be there. One that is there and cannot be read is an error: without it,
/// those who were shut out would be served.
fn revocations(path: &Path) -> Result<Vec<CertificateRevocationListDer<'static>>, TlsError> {
    let bytes = match read(path) {
        Err(TlsError::Read { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {
            return Ok(Vec::new());
        }
        bytes => bytes?,
    };
    let all: Result<Vec<_>, _> = CertificateRevocationListDer::pem_slice_iter(&bytes).collect();
    match all {
        Ok(all) if !all.is_empty() => Ok(all),
        Ok(_) => Err(no_list(path, "there is none; remove the file if nothing was revoked".to_owned())),
        Err(error) => Err(no_list(path, error.to_string())),
    }
}

fn no_list(path: &Path, reason: String) -> TlsError {
    TlsError::Pem { path: path.to_owned(), expected: "list of revoked certificates", reason }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let refuse = |reason: String| TlsError::Pem { path: path.to_owned(), expected: "certificate", reason };
    let bytes = read(path)?;
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
    match all {
        Ok(all) if !all.is_empty() => Ok(all),
        Ok(_) => Err(refuse("there is none".to_owned())),
        Err(error) => Err(refuse(error.to_string())),
    }
}
