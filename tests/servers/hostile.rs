//! Servers that do not behave: each is down, said once in the log, costs bounded memory, and is followed again as soon
//! as it behaves.

use std::io::Write as _;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use agent_session_exporter::sources::live::{LiveSource, Place, Trust};

use super::common::follow::Following;
use super::common::owner::LONG;
use super::log::{log, logged};
use super::raw::{Raw, accepted, answer, frame, is_upgrade, lives, open, stream, tell, upgrade};
use super::toy::{events, record, socket, stand};

/// Peak of resident memory of this process, in MiB.
fn peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|l| l.starts_with("VmHWM")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() / 1024
}

fn health(run: &Following, endpoint: &str, up: bool) {
    run.life.until("health", |s| {
        s.health.iter().any(|h| h.endpoint.as_str() == endpoint && h.up == up && h.scanned)
    });
}

fn good(mut connection: TcpStream, head: &str) {
    if head.starts_with("GET /list") {
        return answer(&mut connection, "200 OK", "application/json", "[]");
    }
    open(&mut connection, head);
    tell(&mut connection, head, record("s", 1).as_bytes());
    let began = Instant::now();
    while lives(&mut connection, head) && began.elapsed() < LONG {
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// A server that misbehaves for a while, then behaves. Its endpoint is down meanwhile, with one line in the log that
/// gives this reason, and up afterwards; it costs bounded memory.
fn misbehaves(
    source: LiveSource,
    reason: &str,
    serve: impl Fn(TcpStream, &str) + Send + Sync + 'static,
) -> String {
    log();
    let before = peak();
    let behaves = Arc::new(AtomicBool::new(false));
    let switch = behaves.clone();
    let raw = Raw::start(move |connection, head| {
        if switch.load(Ordering::SeqCst) {
            good(connection, head);
        } else {
            serve(connection, head);
        }
    });
    let mut stand = stand(source);
    stand.configured.servers.push(raw.place());
    let run = stand.start();
    let endpoint = raw.endpoint().to_owned();
    let began = Instant::now();
    health(&run, &endpoint, false);
    // Some more tries add nothing to the log.
    while raw.connections.load(Ordering::SeqCst) < 4 {
        assert!(began.elapsed() < LONG, "only {} tries", raw.connections.load(Ordering::SeqCst));
        std::thread::sleep(Duration::from_millis(2));
    }
    let warnings = || -> Vec<String> {
        logged(&endpoint).into_iter().filter(|line| line.contains("cannot be followed")).collect()
    };
    let said = warnings();
    assert_eq!(said.len(), 1, "{said:#?}");
    assert!(said[0].contains(&format!("reason=\"{reason}\"")), "{}", said[0]);
    while run.life.counter("source_up") != 0.0 {
        assert!(began.elapsed() < LONG, "never down");
        std::thread::sleep(Duration::from_micros(100));
    }
    behaves.store(true, Ordering::SeqCst);
    health(&run, &endpoint, true);
    let began = Instant::now();
    // The last connection that misbehaved may have looked well for a moment: what only the good one tells is awaited.
    let is_told = || run.life.snapshot().find(&"toy".into(), &"s".into()).is_some();
    while !is_told() || run.life.counter("source_up") != 1.0 {
        assert!(began.elapsed() < LONG, "not followed again");
        std::thread::sleep(Duration::from_millis(2));
    }
    assert_eq!(warnings().len(), 1, "recovery is no second warning");
    run.end();
    assert!(peak() < before + 200, "{} MiB more", peak() - before);
    logged(&endpoint).join("\n")
}

/// The list is answered as it should be; the stream is not.
fn bad_stream(
    serve: impl Fn(TcpStream, &str) + Send + Sync + 'static,
) -> impl Fn(TcpStream, &str) + Send + Sync {
    move |mut connection, head| {
        if head.starts_with("GET /list") {
            answer(&mut connection, "200 OK", "application/json", "[]");
        } else {
            serve(connection, head);
        }
    }
}

/// The stream is as it should be; the list is not.
fn bad_list(serve: impl Fn(TcpStream) + Send + Sync + 'static) -> impl Fn(TcpStream, &str) + Send + Sync {
    move |mut connection, head| {
        if head.starts_with("GET /list") {
            serve(connection);
        } else {
            stream(&mut connection);
            std::thread::sleep(Duration::from_secs(2));
        }
    }
}

#[test]
fn a_redirect_is_not_followed() {
    let elsewhere = Raw::start(|_, _| {});
    for source in [events(), socket()] {
        let target = format!("http://{}/stream", elsewhere.endpoint());
        misbehaves(source, "redirect", move |mut connection, _| {
            let text = format!("HTTP/1.1 302 Found\r\nlocation: {target}\r\ncontent-length: 0\r\n\r\n");
            let _ = connection.write_all(text.as_bytes());
        });
    }
    assert_eq!(elsewhere.connections.load(Ordering::SeqCst), 0, "nobody was sent there");
}

#[test]
fn a_page_is_no_stream_and_no_list() {
    misbehaves(events(), "content_type", |mut connection, _| {
        answer(&mut connection, "200 OK", "text/html", "<html></html>");
    });
    misbehaves(
        events(),
        "protocol",
        bad_list(|mut c| answer(&mut c, "200 OK", "text/html", "<html></html>")),
    );
    misbehaves(socket(), "protocol", |mut connection, _| {
        answer(&mut connection, "200 OK", "text/html", "<html></html>");
    });
}

/// OpenFox opens its socket for everybody, and only the questions are refused.
#[test]
fn a_login_that_is_refused_after_the_stream_was_opened_is_called_so() {
    for source in [events(), socket()] {
        misbehaves(source, "login", |mut connection, head| {
            if head.starts_with("GET /list") {
                return answer(&mut connection, "401 Unauthorized", "application/json", "{}");
            }
            open(&mut connection, head);
            std::thread::sleep(Duration::from_secs(2));
        });
    }
}

#[test]
fn bytes_that_are_no_http_are_refused() {
    for source in [events(), socket()] {
        misbehaves(source, "protocol", |mut connection, _| {
            let _ = connection.write_all(&[0u8, 255, 13, 10, 13, 10].repeat(100));
        });
    }
}

#[test]
fn a_server_that_never_answers_is_given_up() {
    for source in [events(), socket()] {
        misbehaves(source, "timeout", |connection, _| {
            std::thread::sleep(Duration::from_secs(3));
            drop(connection);
        });
    }
}

#[test]
fn an_answer_in_drips_is_given_up() {
    let drips = |mut connection: TcpStream| {
        let _ = connection
            .write_all(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 5000\r\n\r\n[");
        for _ in 0..40 {
            std::thread::sleep(Duration::from_millis(50));
            if connection.write_all(b" ").is_err() {
                return;
            }
        }
    };
    misbehaves(events(), "protocol", bad_list(drips));
}

#[test]
fn a_stream_that_opens_in_drips_is_given_up() {
    for source in [events(), socket()] {
        misbehaves(source, "timeout", |mut connection, _| {
            for byte in b"HTTP/1.1 200 OK\r\nserver: drip\r\nx-one: 1\r\nx-two: 2\r\n" {
                std::thread::sleep(Duration::from_millis(50));
                if connection.write_all(&[*byte]).is_err() {
                    return;
                }
            }
        });
    }
}

#[test]
fn an_answer_without_end_is_given_up() {
    let endless = |mut connection: TcpStream| {
        let _ = connection.write_all(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n[");
        let some = [b' '; 1 << 16];
        while connection.write_all(&some).is_ok() {}
    };
    misbehaves(LiveSource { patience: Duration::from_secs(20), ..events() }, "protocol", bad_list(endless));
}

#[test]
fn a_line_without_end_is_given_up() {
    misbehaves(
        events(),
        "record",
        bad_stream(|mut connection, _| {
            stream(&mut connection);
            let _ = connection.write_all(b"data: ");
            let some = [b'x'; 1 << 16];
            while connection.write_all(&some).is_ok() {}
        }),
    );
}

#[test]
fn a_huge_frame_is_given_up_before_it_is_read() {
    misbehaves(
        socket(),
        "record",
        bad_stream(|mut connection, head| {
            upgrade(&mut connection, head);
            let mut frame = vec![0x81, 127];
            frame.extend_from_slice(&(100u64 << 20).to_be_bytes());
            let _ = connection.write_all(&frame);
            let some = [b'x'; 1 << 16];
            while connection.write_all(&some).is_ok() {}
        }),
    );
}

#[test]
fn a_message_in_pieces_without_end_is_given_up() {
    misbehaves(
        socket(),
        "record",
        bad_stream(|mut connection, head| {
            upgrade(&mut connection, head);
            let piece = [b'x'; 1 << 16];
            let _ = connection.write_all(&frame(0x01, &piece));
            while connection.write_all(&frame(0x00, &piece)).is_ok() {}
        }),
    );
}

#[test]
fn frames_that_break_the_protocol_end_the_stream() {
    misbehaves(
        socket(),
        "protocol",
        bad_stream(|mut connection, head| {
            upgrade(&mut connection, head);
            let _ = connection.write_all(&[0xff; 64]);
            std::thread::sleep(Duration::from_secs(1));
        }),
    );
}

/// Half open: the stream says nothing, while the server answers what it is asked.
#[test]
fn a_stream_that_falls_silent_is_taken_for_dead_though_questions_are_answered() {
    for source in [events(), socket()] {
        let source = LiveSource { quiet: Some(Duration::from_millis(300)), ..source };
        misbehaves(
            source,
            "silent",
            bad_stream(|mut connection, head| {
                open(&mut connection, head);
                std::thread::sleep(Duration::from_secs(2));
            }),
        );
    }
}

#[test]
fn a_sign_of_life_keeps_a_stream() {
    for source in [events(), socket()] {
        let raw = Raw::start(good);
        let mut stand = stand(LiveSource { quiet: Some(Duration::from_millis(300)), ..source });
        stand.configured.servers.push(raw.place());
        let run = stand.start();
        health(&run, raw.endpoint(), true);
        run.life.until("its record", |s| s.find(&"toy".into(), &"s".into()).is_some());
        let held = raw.connections.load(Ordering::SeqCst);
        std::thread::sleep(Duration::from_millis(900));
        assert_eq!(raw.connections.load(Ordering::SeqCst), held, "nothing but a comment or a ping");
        assert_eq!(run.life.counter("source_up"), 1.0);
    }
}

/// Half open: the stream tells, while nobody answers.
#[test]
fn questions_without_answers_end_a_stream_that_pretends_to_live() {
    for source in [events(), socket()] {
        misbehaves(
            LiveSource { patience: Duration::from_millis(200), ..source },
            "timeout",
            |connection, head| {
                if head.starts_with("GET /slow") {
                    return std::thread::sleep(Duration::from_secs(2));
                }
                bad_stream(|mut connection, head| {
                    open(&mut connection, head);
                    while tell(&mut connection, head, br#"{"s": "asks", "ask": "/slow"}"#) {
                        std::thread::sleep(Duration::from_millis(50));
                    }
                })(connection, head);
            },
        );
    }
}

/// Follows a server whose list is empty, and whose stream is kept open by what it tells on it.
fn follow(source: LiveSource, tells: fn(&mut TcpStream, &str)) -> (Raw, Following) {
    log();
    let raw = Raw::start(bad_stream(move |mut connection, head| {
        open(&mut connection, head);
        tells(&mut connection, head);
    }));
    let mut stand = stand(source);
    stand.configured.servers.push(raw.place());
    let run = stand.start();
    (raw, run)
}

/// The one line of the log that says that records cannot be read.
fn unreadable(raw: &Raw) -> String {
    let mut said = logged(raw.endpoint());
    said.retain(|line| line.contains("cannot be read"));
    assert_eq!(said.len(), 1, "{said:#?}");
    said.remove(0)
}

#[test]
fn garbage_records_are_counted_and_said_once() {
    for source in [events(), socket()] {
        let (raw, run) = follow(source, |connection, head| {
            let deep = "[".repeat(200_000);
            for garbage in ["nonsense-planted", "{\"s\": 7}", "[1,2]", "\u{0}", deep.as_str()] {
                tell(connection, head, garbage.as_bytes());
            }
            tell(connection, head, b"\xff\xfe");
            tell(connection, head, record("s", 1).as_bytes());
            std::thread::sleep(LONG);
        });
        run.life.until("the good one", |s| s.find(&"toy".into(), &"s".into()).is_some());
        assert_eq!((run.errors("json"), run.errors("shape")), (4, 2));
        assert!(!unreadable(&raw).contains("planted"));
    }
}

/// However often it comes back with that: it is one fault.
#[test]
fn garbage_of_a_server_that_closes_again_and_again_is_said_once() {
    for source in [events(), socket()] {
        let (raw, run) = follow(source, |connection, head| {
            tell(connection, head, b"nonsense");
            // Until it is read, behind the answer to the list.
            std::thread::sleep(Duration::from_millis(300));
        });
        let began = Instant::now();
        while run.errors("json") < 4 {
            assert!(began.elapsed() < LONG, "only {} records", run.errors("json"));
            std::thread::sleep(Duration::from_millis(5));
        }
        unreadable(&raw);
    }
}

#[test]
fn a_server_that_was_named_is_missed_until_it_answers() {
    let answers = Arc::new(AtomicBool::new(false));
    let switch = answers.clone();
    let raw = Raw::start(move |connection, head| {
        while head.starts_with("GET /list") && !switch.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(10));
        }
        good(connection, head);
    });
    let mut stand = stand(LiveSource { patience: LONG, ..events() });
    stand.configured.servers.push(raw.place());
    let run = stand.start();
    let began = Instant::now();
    while raw.connections.load(Ordering::SeqCst) < 2 {
        assert!(began.elapsed() < LONG, "not asked");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(run.life.telemetry.registry().gather().iter().any(|f| f.name().ends_with("source_up")));
    assert_eq!(run.life.counter("source_up"), 0.0);
    answers.store(true, Ordering::SeqCst);
    health(&run, raw.endpoint(), true);
    assert_eq!(run.life.counter("source_up"), 1.0);
}

#[test]
fn a_certificate_that_nobody_vouches_for_is_refused_unless_it_is_named() {
    log();
    let folder = tempfile::tempdir().unwrap();
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let file = folder.path().join("ca.pem");
    std::fs::write(&file, made.cert.pem()).unwrap();
    for source in [events(), socket()] {
        let place = serve_tls(&made);
        for (named, up) in [(None, false), (Some(file.clone()), true)] {
            let mut stand = stand(source);
            stand.configured.servers.push(place.clone());
            stand.configured.trust = Trust { ca_file: named };
            let run = stand.start();
            health(&run, place.endpoint().as_str(), up);
            assert_eq!(run.life.counter("source_up"), f64::from(up));
            run.end();
        }
        let lines = logged(place.endpoint().as_str());
        let refused: Vec<_> = lines.iter().filter(|l| l.contains("reason=\"certificate\"")).collect();
        assert_eq!(refused.len(), 1, "{lines:#?}");
    }
}

/// A server of the source over TLS.
fn serve_tls(made: &rcgen::CertifiedKey<rcgen::KeyPair>) -> Place {
    use tokio_rustls::rustls::ServerConfig;
    use tokio_rustls::rustls::pki_types::PrivateKeyDer;
    let provider = Arc::new(tokio_rustls::rustls::crypto::ring::default_provider());
    let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)
        .unwrap();
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async move {
            use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            while let Ok((tcp, _)) = listener.accept().await {
                let acceptor = acceptor.clone();
                tokio::spawn(async move {
                    let Ok(mut tls) = acceptor.accept(tcp).await else { return };
                    let mut head = vec![0; 4096];
                    let n = tls.read(&mut head).await.unwrap_or(0);
                    let head = String::from_utf8_lossy(&head[..n]).into_owned();
                    let text = if head.starts_with("GET /list") {
                        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n[]"
                            .to_owned()
                    } else if is_upgrade(&head) {
                        accepted(&head)
                    } else {
                        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n: hello\n\n".to_owned()
                    };
                    let _ = tls.write_all(text.as_bytes()).await;
                    let _ = tls.flush().await;
                    tokio::time::sleep(LONG).await;
                });
            }
        });
    });
    Place::parse(&format!("https://localhost:{port}")).unwrap()
}
