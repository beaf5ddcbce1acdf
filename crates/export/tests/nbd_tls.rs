//! TLS with certificates made by certtool, real clients, and a man in the middle.

mod nbd_support;

use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use blockwork_engine::Nanos;
use blockwork_export::nbd::{Listener, ServerTls, TlsError};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use nbd_support::{Disk, Raw, Rig, file_of_noise, run, try_run};

/// An authority, a server's certificate and a client's, in `folder`, as qemu and libnbd want them.
fn certificates(folder: &Path) {
    std::fs::create_dir_all(folder).unwrap();
    let template = |name: &str, text: &str| std::fs::write(folder.join(name), text).unwrap();
    let certtool = |args: &[&str]| run(Command::new("certtool").current_dir(folder).args(args));
    template("ca.info", "cn = Test authority\nca\ncert_signing_key\nexpiration_days = 30\n");
    template(
        "server.info",
        "organization = Test\ncn = localhost\ndns_name = localhost\nip_address = 127.0.0.1\n\
         tls_www_server\nencryption_key\nsigning_key\nexpiration_days = 30\n",
    );
    template(
        "client.info",
        "organization = Test\ncn = client\ntls_www_client\nencryption_key\nsigning_key\nexpiration_days = 30\n",
    );
    for who in ["ca", "server", "client"] {
        certtool(&[
            "--generate-privkey",
            "--key-type=rsa",
            "--bits=2048",
            "--outfile",
            &format!("{who}-key.pem"),
        ]);
    }
    certtool(&[
        "--generate-self-signed",
        "--load-privkey=ca-key.pem",
        "--template=ca.info",
        "--outfile=ca-cert.pem",
    ]);
    for who in ["server", "client"] {
        certtool(&[
            "--generate-certificate",
            "--load-ca-certificate=ca-cert.pem",
            "--load-ca-privkey=ca-key.pem",
            &format!("--load-privkey={who}-key.pem"),
            &format!("--template={who}.info"),
            &format!("--outfile={who}-cert.pem"),
        ]);
    }
}

/// A TLS server on TCP; its URI for libnbd's tools, without the export's name.
fn tls_rig(verify_peer: bool) -> (Rig, String) {
    let folder = tempfile::tempdir().unwrap();
    let pki = folder.path().join("pki");
    certificates(&pki);
    let tls = ServerTls::from_folder(&pki, verify_peer).unwrap();
    let tcp = Listener::tcp("127.0.0.1:0").unwrap();
    let unix = Listener::unix(&folder.path().join("socket")).unwrap();
    let rig = Rig::listening(
        &[Disk::new("d", "memory:64M"), Disk::new("secret-name", "memory:1M")],
        2,
        |config| config.tls = Some(tls),
        vec![tcp, unix],
        folder,
    );
    let address = rig.server.addresses()[0].clone();
    assert!(address.starts_with("nbds://127.0.0.1:"), "{address}");
    let uri = address.replace("127.0.0.1", "localhost");
    (rig, uri)
}

fn with_certificates(uri: &str, export: &str, pki: &Path) -> String {
    format!("{uri}/{export}?tls-certificates={}", pki.display())
}

#[test]
fn nbdinfo_and_nbdcopy_work_over_tls() {
    let (rig, uri) = tls_rig(true);
    let d = with_certificates(&uri, "d", &rig.path("pki"));
    let said = run(Command::new("nbdinfo").args(["--json", &d]));
    assert!(said.contains("\"TLS\": true") && said.contains("\"structured\": true"), "{said}");
    let list = run(Command::new("nbdinfo").args(["--list", &with_certificates(&uri, "", &rig.path("pki"))]));
    assert!(list.contains("secret-name"), "{list}");
    let (from, to) = (rig.path("from"), rig.path("to"));
    let noise = file_of_noise(&from, 40 << 20);
    run(Command::new("nbdcopy").arg(&from).arg(&d));
    run(Command::new("nbdcopy").arg(&d).arg(&to));
    assert!(std::fs::read(to).unwrap()[..noise.len()] == noise[..]);
}

#[test]
fn qemu_io_works_over_tls() {
    let (rig, uri) = tls_rig(true);
    let port = uri.rsplit(':').next().unwrap();
    let said = run(Command::new("qemu-io").args([
        "--object",
        &format!("tls-creds-x509,id=tls0,endpoint=client,dir={}", rig.path("pki").display()),
        "--image-opts",
        &format!(
            "driver=nbd,server.type=inet,server.host=localhost,server.port={port},export=d,tls-creds=tls0"
        ),
        "-c",
        "write -P 7 1M 5M",
        "-c",
        "read -P 7 1M 5M",
        "-c",
        "flush",
    ]));
    assert!(!said.contains("failed") && !said.contains("error"), "{said}");
}

#[test]
fn tls_1_2_and_1_3_are_spoken_and_nothing_older() {
    let (rig, uri) = tls_rig(true);
    let d = with_certificates(&uri, "d", &rig.path("pki"));
    let script = format!(
        "import nbd\nh = nbd.NBD()\nh.set_uri_allow_local_file(True)\nh.connect_uri({d:?})\n\
         h.pwrite(b'x' * 3000000, 5)\nassert h.pread(3000000, 5) == b'x' * 3000000\nh.shutdown()\n"
    );
    let overrides = rig.path("gnutls.cfg");
    // Which versions the client does without.
    for (without, works) in [(&["1.3", "1.2"][..], false), (&["1.3"], true), (&["1.2", "1.1", "1.0"], true)] {
        let lines: String =
            without.iter().map(|version| format!("disabled-version = tls{version}\n")).collect();
        std::fs::write(&overrides, format!("[overrides]\n{lines}")).unwrap();
        let mut client = Command::new("/usr/bin/python3");
        client.env("GNUTLS_SYSTEM_PRIORITY_FILE", &overrides).args(["-c", &script]);
        let output = try_run(&mut client);
        assert_eq!(
            output.status.success(),
            works,
            "without {without:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
}

#[test]
fn without_a_good_certificate_there_is_nothing_to_see() {
    let (rig, uri) = tls_rig(true);
    let foreign = rig.path("foreign");
    certificates(&foreign);
    // Trusts our authority, shows a certificate of another one.
    std::fs::copy(rig.path("pki").join("ca-cert.pem"), foreign.join("ca-cert.pem")).unwrap();
    assert!(!try_run(Command::new("nbdinfo").arg(with_certificates(&uri, "d", &foreign))).status.success());
    let none = rig.path("none");
    std::fs::create_dir(&none).unwrap();
    std::fs::copy(rig.path("pki").join("ca-cert.pem"), none.join("ca-cert.pem")).unwrap();
    assert!(!try_run(Command::new("nbdinfo").arg(with_certificates(&uri, "d", &none))).status.success());
    run(Command::new("nbdinfo").arg(with_certificates(&uri, "d", &rig.path("pki"))));
}

#[test]
fn a_client_whose_certificate_was_revoked_is_not_served() {
    let folder = tempfile::tempdir().unwrap();
    let pki = folder.path().join("pki");
    certificates(&pki);
    let certtool = |args: &[&str]| run(Command::new("certtool").current_dir(&pki).args(args));
    // Another client of the same authority.
    let other = folder.path().join("other");
    std::fs::create_dir(&other).unwrap();
    for file in ["ca-cert.pem", "client-key.pem"] {
        std::fs::copy(pki.join(file), other.join(file)).unwrap();
    }
    certtool(&[
        "--generate-certificate",
        "--load-ca-certificate=ca-cert.pem",
        "--load-ca-privkey=ca-key.pem",
        "--load-privkey=client-key.pem",
        "--template=client.info",
        "--outfile=../other/client-cert.pem",
    ]);
    std::fs::write(pki.join("crl.info"), "crl_next_update = 30\ncrl_number = 1\n").unwrap();
    certtool(&[
        "--generate-crl",
        "--load-ca-certificate=ca-cert.pem",
        "--load-ca-privkey=ca-key.pem",
        "--load-certificate=client-cert.pem",
        "--template=crl.info",
        "--outfile=ca-crl.pem",
    ]);
    let tls = ServerTls::from_folder(&pki, true).unwrap();
    let tcp = Listener::tcp("127.0.0.1:0").unwrap();
    let rig =
        Rig::listening(&[Disk::new("d", "memory:1M")], 1, |config| config.tls = Some(tls), vec![tcp], folder);
    let uri = rig.server.addresses()[0].replace("127.0.0.1", "localhost");
    assert!(!try_run(Command::new("nbdinfo").arg(with_certificates(&uri, "d", &pki))).status.success());
    run(Command::new("nbdinfo").arg(with_certificates(&uri, "d", &other)));
}

#[test]
fn a_list_of_revoked_certificates_that_cannot_be_read_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    certificates(folder.path());
    let pem = "-----BEGIN X509 CRL-----\nMAYCAQEEAQE=\n-----END X509 CRL-----\n";
    for text in ["", pem] {
        std::fs::write(folder.path().join("ca-crl.pem"), text).unwrap();
        let error = ServerTls::from_folder(folder.path(), true).unwrap_err();
        assert!(matches!(error, TlsError::Pem { .. }), "{error}");
        assert!(error.to_string().contains("ca-crl.pem"), "{error}");
        ServerTls::from_folder(folder.path(), false).unwrap();
    }
}

#[test]
fn without_verification_any_client_is_served() {
    let (rig, uri) = tls_rig(false);
    let none = rig.path("none");
    std::fs::create_dir(&none).unwrap();
    std::fs::copy(rig.path("pki").join("ca-cert.pem"), none.join("ca-cert.pem")).unwrap();
    run(Command::new("nbdinfo").arg(with_certificates(&uri, "d", &none)));
}

// libnbd CVE-2019-14842 seen from the server: a client that talks in clear text learns nothing at all.
#[test]
fn in_clear_text_no_name_leaves_the_server() {
    let (rig, uri) = tls_rig(true);
    let clear = uri.replace("nbds://", "nbd://");
    for target in [format!("{clear}/d"), format!("{clear}/")] {
        let output = try_run(Command::new("nbdinfo").args(["--list", &target]));
        assert!(!output.status.success());
        let said =
            format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(!said.contains("secret-name"), "{said}");
    }
    drop(rig);
}

// nbdkit CVE-2021-3716: bytes in clear text behind STARTTLS.
#[test]
fn clear_text_behind_starttls_ends_the_connection() {
    let (rig, _) = tls_rig(true);
    let mut raw = Raw::connect(&rig);
    let option = |number: u32| [&b"IHAVEOPT"[..], &number.to_be_bytes(), &0u32.to_be_bytes()].concat();
    raw.write(&[&3u32.to_be_bytes()[..], &option(5), &option(8)].concat());
    assert_eq!(raw.option_reply(), (1, vec![]));
    assert!(raw.is_closed());
}

#[test]
fn what_follows_the_end_of_tls_is_not_taken_and_half_a_message_before_it_ends_the_connection() {
    let folder = tempfile::tempdir().unwrap();
    let pki = folder.path().join("pki");
    certificates(&pki);
    let tls = ServerTls::from_folder(&pki, false).unwrap();
    let rig = Rig::with(&[Disk::new("d", "memory:1M")], 1, |config| config.tls = Some(tls));
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(pki.join("ca-cert.pem")).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config =
        rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let config = Arc::new(config.with_root_certificates(roots).with_no_client_auth());
    // Of the handshake, and of transmission: half of a head.
    let go = [&b"IHAVEOPT"[..], &7_u32.to_be_bytes(), &6_u32.to_be_bytes(), &[0; 6]].concat();
    for message in [b"IHAV".to_vec(), [&go[..], &[0x25, 0x60, 0x95, 0x13]].concat()] {
        let mut raw = Raw::connect(&rig);
        raw.write(&3u32.to_be_bytes());
        raw.option(5, b"");
        assert_eq!(raw.option_reply(), (1, vec![]));
        let mut client =
            rustls::ClientConnection::new(config.clone(), "localhost".try_into().unwrap()).unwrap();
        rustls::Stream::new(&mut client, &mut raw.stream).write_all(&message).unwrap();
        client.send_close_notify();
        client.complete_io(&mut raw.stream).unwrap();
        // More than is ever kept of a client. It may be closed while this is sent.
        _ = raw.stream.write_all(&[0; 1 << 20]);
        assert!(raw.is_closed());
    }
    // Others are served.
    Raw::connect(&rig);
}

#[test]
fn garbage_instead_of_a_tls_handshake_ends_the_connection() {
    let (rig, _) = tls_rig(true);
    let mut raw = Raw::connect(&rig);
    raw.write(&3u32.to_be_bytes());
    raw.option(5, b"");
    assert_eq!(raw.option_reply(), (1, vec![]));
    raw.write(&[0x55; 5000]);
    assert!(raw.is_closed());
}

#[test]
fn a_tls_handshake_that_stands_still_is_ended() {
    let folder = tempfile::tempdir().unwrap();
    certificates(&folder.path().join("pki"));
    let tls = ServerTls::from_folder(&folder.path().join("pki"), true).unwrap();
    let rig = Rig::with(&[Disk::new("d", "memory:1M")], 1, |config| {
        config.tls = Some(tls);
        config.handshake_time = Nanos::millis(100);
    });
    let mut raw = Raw::connect(&rig);
    raw.write(&3u32.to_be_bytes());
    raw.option(5, b"");
    assert_eq!(raw.option_reply(), (1, vec![]));
    raw.write(&[0x16, 3, 1, 2, 0]); // the head of a record, and no more
    assert!(raw.is_closed());
}

// certtool (GnuTLS 3.7) writes every other EC key with 33 bytes where the standard has 32, which ring does not read.
#[test]
fn a_key_that_cannot_be_read_is_named_with_a_remedy() {
    let folder = tempfile::tempdir().unwrap();
    let pki = folder.path().join("pki");
    certificates(&pki);
    // SEC1, version 1, an octet string of one byte: no key of any curve.
    let pem = "-----BEGIN EC PRIVATE KEY-----\nMAYCAQEEAQE=\n-----END EC PRIVATE KEY-----\n";
    std::fs::write(pki.join("server-key.pem"), pem).unwrap();
    let error = ServerTls::from_folder(&pki, true).unwrap_err().to_string();
    assert!(error.contains("server-key.pem") && error.contains("openssl pkcs8"), "{error}");
}

#[test]
fn a_folder_that_is_no_use_says_what_is_missing() {
    let folder = tempfile::tempdir().unwrap();
    let missing = ServerTls::from_folder(folder.path(), true).unwrap_err();
    assert!(matches!(missing, TlsError::Read { .. }));
    assert!(missing.to_string().contains("server-cert.pem"), "{missing}");
    std::fs::write(folder.path().join("keys.psk"), "user:00").unwrap();
    let psk = ServerTls::from_folder(folder.path(), true).unwrap_err();
    assert!(matches!(psk, TlsError::PreSharedKeys(_)), "{psk}");
    std::fs::write(folder.path().join("server-cert.pem"), "not a certificate").unwrap();
    let pem = ServerTls::from_folder(folder.path(), true).unwrap_err();
    assert!(matches!(pem, TlsError::Pem { .. }), "{pem}");
}
