//! Requests and answers of HTTP/1.1, as far as the server of one page needs them.
//!
//! Every user of this machine, and every page in the user's browser, can send requests to the loopback interface. So a
//! request must be GET without a body, with a short, prompt head whose `Host` names the loopback interface (with DNS
//! rebinding, it is the attacker's). No part of a request appears in an answer. A connection carries one request and
//! one answer.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, TcpStream};
use std::time::{Duration, Instant};

pub const LONGEST_HEAD: usize = 8 << 10;
const MOST_FIELDS: usize = 64;
pub const HEAD_TIME: Duration = Duration::from_secs(5);
const ANSWER_TIME: Duration = Duration::from_secs(30);
/// Time for which the server reads what the client still sends, and bytes of that. See [`drain`].
const REST_TIME: Duration = Duration::from_millis(500);
const REST_BYTES: usize = 64 << 10;
const PIECE: usize = 64 << 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HttpError {
    Malformed,
    Slow,
    TooLarge,
    Method,
    Version,
    Host,
    NotFound,
    Gone,
}

impl HttpError {
    pub fn status(self) -> &'static str {
        match self {
            HttpError::Malformed | HttpError::Gone => "400 Bad Request",
            HttpError::Slow => "408 Request Timeout",
            HttpError::TooLarge => "431 Request Header Fields Too Large",
            HttpError::Method => "405 Method Not Allowed",
            HttpError::Version => "505 HTTP Version Not Supported",
            HttpError::Host => "421 Misdirected Request",
            HttpError::NotFound => "404 Not Found",
        }
    }
}

/// Reads a request. Returns its path.
pub fn read_request(stream: &mut TcpStream) -> Result<String, HttpError> {
    let end = Instant::now() + HEAD_TIME;
    let mut head = Vec::with_capacity(1 << 10);
    let mut piece = [0; 1 << 10];
    loop {
        if let Some(at) = head.windows(4).position(|part| part == b"\r\n\r\n") {
            return parse(head.get(..at).unwrap_or_default());
        }
        if head.len() >= LONGEST_HEAD {
            return Err(HttpError::TooLarge);
        }
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(HttpError::Slow);
        }
        stream.set_read_timeout(Some(left)).map_err(|_| HttpError::Gone)?;
        match stream.read(&mut piece) {
            Ok(0) => return Err(HttpError::Gone),
            Ok(read) => head.extend_from_slice(piece.get(..read).unwrap_or_default()),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                return Err(HttpError::Slow);
            }
            Err(_) => return Err(HttpError::Gone),
        }
    }
}

fn parse(head: &[u8]) -> Result<String, HttpError> {
    // Line breaks are CR LF, and there is no other control character but the tab of a field.
    let is_plain = |line: &str| line.bytes().all(|byte| byte == b'\t' || (b' '..=b'~').contains(&byte));
    let head = std::str::from_utf8(head).map_err(|_| HttpError::Malformed)?;
    let mut lines = head.split("\r\n");
    let first = lines.next().filter(|line| is_plain(line)).ok_or(HttpError::Malformed)?;
    let mut words = first.split(' ');
    let (Some(method), Some(path), Some(version), None) = (words.next(), words.next(), words.next(), words.next())
    else {
        return Err(HttpError::Malformed);
    };
    let mut host = None;
    for (number, line) in lines.enumerate() {
        if number == MOST_FIELDS {
            return Err(HttpError::TooLarge);
        }
        let (name, value) = line.split_once(':').filter(|_| is_plain(line)).ok_or(HttpError::Malformed)?;
        // This refuses folded lines and a blank before the colon, too.
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
        if name.is_empty() || !name.bytes().all(is_name) {
            return Err(HttpError::Malformed);
        }
        let value = value.trim_matches([' ', '\t']);
        if name.eq_ignore_ascii_case("host") && host.replace(value).is_some() {
            return Err(HttpError::Malformed);
        }
        let has_body = name.eq_ignore_ascii_case("transfer-encoding")
            || (name.eq_ignore_ascii_case("content-length") && value != "0");
        if has_body {
            return Err(HttpError::Malformed);
        }
    }
    if !["HTTP/1.1", "HTTP/1.0"].contains(&version) {
        return Err(if version.starts_with("HTTP/") { HttpError::Version } else { HttpError::Malformed });
    }
    if method != "GET" {
        return Err(HttpError::Method);
    }
    match host {
        None => return Err(HttpError::Malformed),
        Some(host) if !is_loopback(host) => return Err(HttpError::Host),
        Some(_) => {}
    }
    if !path.starts_with('/') {
        return Err(HttpError::Malformed);
    }
    Ok(path.to_owned())
}

/// Whether a `Host` names the loopback interface. Any port is good: a tunnel of ssh may have another at its near end.
fn is_loopback(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if !port.ends_with(']') => {
            let is_port = port.len() <= 5 && port.bytes().all(|byte| byte.is_ascii_digit());
            if !is_port {
                return false;
            }
            name
        }
        _ => host,
    };
    let six = name.strip_prefix('[').and_then(|name| name.strip_suffix(']'));
    name.eq_ignore_ascii_case("localhost")
        || name.parse() == Ok(Ipv4Addr::LOCALHOST)
        || six.is_some_and(|name| name.parse() == Ok(Ipv6Addr::LOCALHOST))
}

pub struct HttpResponse<'a> {
    pub status: &'a str,
    pub content_type: &'a str,
    pub policy: &'a str,
    pub body: &'a [u8],
}

/// Content security policy of answers without a page.
pub const NOTHING: &str = "default-src 'none'; frame-ancestors 'none'";

impl HttpResponse<'_> {
    /// Sends it, and ends the connection.
    pub fn send(&self, stream: &mut TcpStream) -> io::Result<()> {
        let end = Instant::now() + ANSWER_TIME;
        let head = format!(
            "HTTP/1.1 {}\r\nContent-Type: {}\r\nContent-Length: {}\r\nConnection: close\r\nCache-Control: no-store\r\n\
             X-Content-Type-Options: nosniff\r\nReferrer-Policy: no-referrer\r\nX-Frame-Options: DENY\r\n\
             Cross-Origin-Opener-Policy: same-origin\r\nCross-Origin-Resource-Policy: same-origin\r\n\
             Content-Security-Policy: {}\r\n{}\r\n",
            self.status,
            self.content_type,
            self.body.len(),
            self.policy,
            if self.status.starts_with("405") { "Allow: GET\r\n" } else { "" },
        );
        for piece in std::iter::once(head.as_bytes()).chain(self.body.chunks(PIECE)) {
            let mut rest = piece;
            while !rest.is_empty() {
                let left = end.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return Err(ErrorKind::TimedOut.into());
                }
                stream.set_write_timeout(Some(left))?;
                match stream.write(rest) {
                    Ok(0) => return Err(ErrorKind::WriteZero.into()),
                    Ok(written) => rest = rest.get(written..).unwrap_or_default(),
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    Err(error) => return Err(error),
                }
            }
        }
        stream.shutdown(std::net::Shutdown::Write)?;
        drain(stream)
    }
}

/// Reads what the client sends after its request: closing a socket with unread bytes may lose the answer.
fn drain(stream: &mut TcpStream) -> io::Result<()> {
    let end = Instant::now() + REST_TIME;
    let mut piece = [0; 4 << 10];
    let mut all = 0;
    while all < REST_BYTES {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break;
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut piece) {
            Ok(0) | Err(_) => break,
            Ok(read) => all += read,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(text: &str) -> Result<String, HttpError> {
        parse(text.as_bytes())
    }

    #[test]
    fn accepts_requests_of_browsers() {
        let head = "GET /token/ HTTP/1.1\r\nHost: 127.0.0.1:8123\r\nAccept: */*\r\nContent-Length: 0\r\nX-Empty:";
        assert_eq!(request(head).as_deref(), Ok("/token/"));
        assert_eq!(request("GET /../x%2f?y HTTP/1.0\r\nhost:localhost").as_deref(), Ok("/../x%2f?y"));
    }

    #[test]
    fn refuses_bad_requests() {
        let host = "Host: localhost";
        let with = |first: &str, fields: &[&str]| request(&[&[first], fields].concat().join("\r\n"));
        let get = "GET / HTTP/1.1";
        for (first, fields, refusal) in [
            ("POST / HTTP/1.1", &[host][..], HttpError::Method),
            ("HEAD / HTTP/1.1", &[host], HttpError::Method),
            ("get / HTTP/1.1", &[host], HttpError::Method),
            ("GET / HTTP/2.0", &[host], HttpError::Version),
            ("GET / HTTP/0.9", &[host], HttpError::Version),
            ("GET /", &[host], HttpError::Malformed),
            ("GET  / HTTP/1.1", &[host], HttpError::Malformed),
            ("GET / HTTP/1.1 ", &[host], HttpError::Malformed),
            ("GET http://localhost/ HTTP/1.1", &[host], HttpError::Malformed),
            ("GET * HTTP/1.1", &[host], HttpError::Malformed),
            ("GET /\u{e9} HTTP/1.1", &[host], HttpError::Malformed),
            ("GET /\n HTTP/1.1", &[host], HttpError::Malformed),
            (get, &[], HttpError::Malformed),
            (get, &[host, host], HttpError::Malformed),
            (get, &[host, "Content-Length: 1"], HttpError::Malformed),
            (get, &[host, "Content-Length: 00"], HttpError::Malformed),
            (get, &[host, "Transfer-Encoding: chunked"], HttpError::Malformed),
            (get, &[host, " folded: x"], HttpError::Malformed),
            (get, &[host, "blank : x"], HttpError::Malformed),
            (get, &[host, "no colon"], HttpError::Malformed),
            (get, &[host, "X: a\nb"], HttpError::Malformed),
            (get, &[host, ""], HttpError::Malformed),
            (get, &["Host: evil.example"], HttpError::Host),
            (get, &["Host: localhost.evil.example:80"], HttpError::Host),
            (get, &["Host: 127.0.0.1.evil.example"], HttpError::Host),
            (get, &["Host: evil.example:127.0.0.1"], HttpError::Host),
            (get, &["Host: 0.0.0.0"], HttpError::Host),
            (get, &["Host: localhost:x"], HttpError::Host),
            (get, &["Host:"], HttpError::Host),
        ] {
            assert_eq!(with(first, fields), Err(refusal), "{first:?} {fields:?}");
        }
        let many = vec!["X: y"; MOST_FIELDS];
        assert_eq!(with(get, &[&[host], &many[..]].concat()), Err(HttpError::TooLarge));
        assert_eq!(parse(b"GET /\xff HTTP/1.1\r\nHost: localhost"), Err(HttpError::Malformed));
    }

    #[test]
    fn hosts_of_this_machine_at_any_port() {
        for host in ["127.0.0.1", "127.0.0.1:1", "localhost", "LOCALHOST:65535", "[::1]:8123", "[::1]"] {
            assert!(is_loopback(host), "{host}");
        }
    }
}
