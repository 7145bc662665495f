//! Options that other ways of sending have. Where one makes no sense it is refused by a sentence that says why, and what to do
//! instead; the table in docs/trafficgen.md shows them all.

use std::marker::PhantomData;

use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Args, Command, FromArgMatches};

use crate::error::{Error, Result};

/// An option, without its dashes, and why it makes no sense. All of them take a value.
pub(crate) type Refused = (&'static str, &'static str);

/// A command that lacks options of others.
pub(crate) trait Lacks {
    /// Those that it refuses.
    const REFUSED: &'static [Refused];
}

/// The refused options as given on the command line.
#[derive(Debug)]
pub(crate) struct Elsewhere<C> {
    given: Option<Refused>,
    _command: PhantomData<C>,
}

impl<C: Lacks> Elsewhere<C> {
    /// Succeeds if none was given.
    pub(crate) fn refuse(&self) -> Result<()> {
        match self.given {
            Some((name, why)) => Err(Error::usage(format!("take --{name}"), why)),
            None => Ok(()),
        }
    }
}

impl<C: Lacks> Args for Elsewhere<C> {
    fn augment_args(command: Command) -> Command {
        command.args(C::REFUSED.iter().map(|(name, _)| Arg::new(*name).long(*name).hide(true)))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl<C: Lacks> FromArgMatches for Elsewhere<C> {
    fn from_arg_matches(matches: &ArgMatches) -> std::result::Result<Self, clap::Error> {
        let is_given = |(name, _): &&Refused| matches.value_source(name) == Some(ValueSource::CommandLine);
        Ok(Self { given: C::REFUSED.iter().find(is_given).copied(), _command: PhantomData })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> std::result::Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}
