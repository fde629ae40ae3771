//! The destination of an imported profile.

use std::fs::File;
use std::io::{BufWriter, Seek};
use std::path::PathBuf;

use anyhow::{Context, anyhow};
use ccsd_daemon::OutputFile;
use ccsd_profile::{Encoder, SessionInfo, Update};

use crate::exit::Failure;

/// The destination of an imported profile. The first error is kept until the end.
pub struct Output<'a> {
    /// `None` for a temporary file without a name.
    path: Option<&'a PathBuf>,
    state: OutputState,
}

enum OutputState {
    /// Nothing is created or replaced before there is something to write.
    Waiting,
    Named(Box<OutputFile>),
    Unnamed(Box<Encoder<BufWriter<File>>>),
    Failed(Failure),
}

impl<'a> Output<'a> {
    pub fn new(path: Option<&'a PathBuf>) -> Output<'a> {
        Output { path, state: OutputState::Waiting }
    }

    pub fn begin(&mut self, session: &SessionInfo) {
        if !matches!(self.state, OutputState::Waiting) {
            return;
        }
        self.state = match self.path {
            Some(path) => match OutputFile::replace(path, session) {
                Ok(output) => OutputState::Named(Box::new(output)),
                Err(error) => OutputState::Failed(Failure::at_run_time(error)),
            },
            None => {
                let file = tempfile::tempfile().context("cannot make a temporary file").map_err(Failure::at_run_time);
                let encoder = file.and_then(|file| {
                    Encoder::new(BufWriter::with_capacity(1 << 18, file), session).map_err(Failure::at_run_time)
                });
                encoder.map_or_else(OutputState::Failed, |encoder| OutputState::Unnamed(Box::new(encoder)))
            }
        };
    }

    pub fn write(&mut self, update: &Update) {
        match &mut self.state {
            OutputState::Named(output) => output.write(update),
            OutputState::Unnamed(encoder) => {
                if let Err(error) = encoder.write(update) {
                    self.state = OutputState::Failed(Failure::at_run_time(error));
                }
            }
            OutputState::Waiting | OutputState::Failed(_) => {}
        }
    }

    pub fn finish(self) -> Result<Option<File>, Failure> {
        match self.state {
            OutputState::Waiting => Ok(None),
            OutputState::Failed(failure) => Err(failure),
            OutputState::Named(mut output) => {
                output.finish();
                match output.error() {
                    Some(error) => Err(Failure::at_run_time(anyhow!("{error}"))),
                    None => Ok(None),
                }
            }
            OutputState::Unnamed(encoder) => {
                let written = encoder.finish().map_err(Failure::at_run_time)?;
                let file = written.into_inner().map_err(|error| error.into_error());
                let mut file = file.context("cannot write a temporary file").map_err(Failure::at_run_time)?;
                file.rewind().context("cannot read a temporary file").map_err(Failure::at_run_time)?;
                Ok(Some(file))
            }
        }
    }
}
