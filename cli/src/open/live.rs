//! What a served page needs beyond its file: a policy in its head, and a script that follows a session or a file.

use std::ops::Range;

/// Reloads the page when the server has another one. Needs a `LIVE` before it.
const SCRIPT: &str = include_str!("live.js");
/// In its place when the session can no longer be read.
const LAST_STATE: &str = "<div role=\"status\" style=\"position:fixed;right:8px;bottom:8px;padding:4px 8px;border:1px solid \
                          GrayText;border-radius:4px;background:Canvas;color:CanvasText;font:12px \
                          system-ui,sans-serif;z-index:9\">no longer live: ccsd cannot read the session, this is its last \
                          state</div>\n";
const POLICY: &str = "http-equiv=\"Content-Security-Policy\" content=\"";
const STRICT: &str =
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; base-uri 'none'; form-action 'none'";
/// What the script must be allowed.
const CONNECT: &str = "; connect-src 'self'";
/// What only a server can demand.
const NO_FRAMES: &str = "; frame-ancestors 'none'";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Follows {
    Session,
    File,
}

impl Follows {
    /// What the page says of it, and the milliseconds between its questions. A page of a session costs more to make.
    const fn terms(self) -> (&'static str, u32) {
        match self {
            Follows::Session => ("live: every 5 s", 5_000),
            Follows::File => ("follows the file", 2_000),
        }
    }
}

pub struct ServedPage {
    pub bytes: Vec<u8>,
    pub policy: String,
    /// Where the script and its permission are in the page, if it is live.
    live: Option<LiveParts>,
}

#[derive(Clone)]
struct LiveParts {
    connect: Range<usize>,
    script: Range<usize>,
}

impl ServedPage {
    /// A page of `export html`; with what can change it, and its number.
    pub fn new(page: Vec<u8>, live: Option<(Follows, u64)>) -> ServedPage {
        let Ok(page) = String::from_utf8(page) else {
            // The exporter writes UTF-8 alone.
            return ServedPage { bytes: Vec::new(), policy: format!("{STRICT}{NO_FRAMES}"), live: None };
        };
        let end_of_policy = page.find(POLICY).map(|at| at + POLICY.len());
        let end_of_policy = end_of_policy.and_then(|from| Some((from, from + page.get(from..)?.find('"')?)));
        let own = end_of_policy.and_then(|(from, to)| page.get(from..to)).unwrap_or(STRICT).to_owned();
        let connect = if live.is_some() { CONNECT } else { "" };
        let policy = format!("{own}{connect}{NO_FRAMES}");
        let Some((follows, version)) = live else {
            return ServedPage { bytes: page.into_bytes(), policy, live: None };
        };
        let (says, every) = follows.terms();
        let terms = format!("const LIVE = {{ version: {version}, every: {every}, says: \"{says}\" }};\n");
        let mut bytes = Vec::with_capacity(page.len() + SCRIPT.len() + 64);
        let (head, rest) = page.split_at(end_of_policy.map_or(0, |(_, to)| to));
        bytes.extend_from_slice(head.as_bytes());
        let start = bytes.len();
        if end_of_policy.is_some() {
            bytes.extend_from_slice(CONNECT.as_bytes());
        }
        let connect = start..bytes.len();
        let (body, tail) = rest.split_at(rest.rfind("</body>").unwrap_or(rest.len()));
        bytes.extend_from_slice(body.as_bytes());
        let start = bytes.len();
        for part in ["<script>\n", &terms, SCRIPT, "</script>\n"] {
            bytes.extend_from_slice(part.as_bytes());
        }
        let live = Some(LiveParts { connect, script: start..bytes.len() });
        bytes.extend_from_slice(tail.as_bytes());
        ServedPage { bytes, policy, live }
    }

    /// The same page for a session that cannot be read any more. It says so, and does not reload itself.
    pub fn last_state(&self) -> ServedPage {
        let (mut bytes, policy) = (self.bytes.clone(), self.policy.replace(CONNECT, ""));
        if let Some(LiveParts { connect, script }) = self.live.clone() {
            bytes.splice(script, LAST_STATE.bytes());
            bytes.drain(connect);
        }
        ServedPage { bytes, policy, live: None }
    }
}

#[cfg(test)]
mod tests {
    use ccsd_profile::export::{Export, Format};
    use ccsd_profile::view::Selection;

    use super::*;
    use crate::top::TestProfile;

    #[test]
    fn the_page_of_a_session_follows_it_and_is_else_the_same() {
        let mut source = TestProfile::new();
        source.charge(&["main"], 1);
        let mut page = Vec::new();
        let selection = Selection::all();
        Export::new(&source.profile, &selection).write(Format::Html, &mut page).unwrap();
        let still = ServedPage::new(page.clone(), None);
        assert_eq!(still.bytes, page);
        assert!(still.policy.starts_with("default-src 'none'; ") && !still.policy.contains("connect-src"));
        let live = ServedPage::new(page.clone(), Some((Follows::Session, 7)));
        let last = live.last_state();
        let text = String::from_utf8(live.bytes).unwrap();
        assert!(live.policy.contains("connect-src 'self'") && live.policy.contains("frame-ancestors 'none'"));
        assert!(text.contains("; connect-src 'self'\">") && text.matches("</script>\n</body>").count() == 1, "{text}");
        let terms = "const LIVE = { version: 7, every: 5000, says: \"live: every 5 s\" };\n";
        assert!(text.contains(terms), "{text}");
        let added = CONNECT.len() + terms.len() + SCRIPT.len() + "<script>\n</script>\n".len();
        assert_eq!(text.len(), page.len() + added);
        assert!(!SCRIPT.contains("</script"));
        let text = String::from_utf8(last.bytes).unwrap();
        assert_eq!(text.replacen(LAST_STATE, "", 1).into_bytes(), page);
        assert!(text.contains("</div>\n</body>") && last.policy == still.policy, "{}", last.policy);
    }
}
