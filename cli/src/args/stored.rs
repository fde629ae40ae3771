//! Arguments that choose a part of a profile's time.

use std::path::PathBuf;

use anyhow::anyhow;
use clap::Args;

use crate::exit::Failure;
use crate::source::ProfileSource;
use crate::times::When;

/// Which time of a file, or of what a watch has stored.
#[derive(Debug, Default, Args)]
pub struct StoredArgs {
    /// The profiles of a watch, like watch:NAME; of all watches with `all`
    #[arg(long, value_name = "NAME", help_heading = "Time")]
    pub watch: Option<String>,
    /// Start of the time, or a range: +10s, 03:10, 2026-11-21T03:10, +10s..+20s
    ///
    /// In a file, +10s is ten seconds after its start, -10s ten seconds before its end. In a watch, -1h is an hour ago;
    /// `today` and `yesterday` work, too. Time is stored in intervals of about a second, longer in long profiles. Of a file,
    /// intervals that lie mostly in the range count; of a watch, all that overlap it. The report shows the exact range.
    #[arg(long, value_name = "TIME", allow_hyphen_values = true, help_heading = "Time")]
    pub since: Option<When>,
    /// End of the time
    #[arg(long, value_name = "TIME", allow_hyphen_values = true, help_heading = "Time")]
    pub until: Option<When>,
    /// Directory of the service's profiles [default: state_dir of /etc/ccsd/ccsd.toml, or /var/lib/ccsd]
    #[arg(long, value_name = "DIR", hide_short_help = true, help_heading = "Time")]
    pub state_dir: Option<PathBuf>,
}

impl StoredArgs {
    /// What is read: the watch of `--watch`, else `given`. Fails if `--state-dir` is given and no watch is read.
    pub fn source(&self, given: &ProfileSource) -> Result<ProfileSource, Failure> {
        let source = self.watch.clone().map_or_else(|| given.clone(), ProfileSource::Watch);
        if self.state_dir.is_some() && !matches!(source, ProfileSource::Watch(_)) {
            return Err(Failure::bad_request(anyhow!("--state-dir goes with watch:NAME or --watch NAME")));
        }
        Ok(source)
    }

    /// Whether only a part of the time is asked for.
    pub fn is_part(&self) -> bool {
        self.since.is_some() || self.until.is_some()
    }
}
