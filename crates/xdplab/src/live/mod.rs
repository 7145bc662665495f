//! Live commands: one program on one interface, and what it counts told interval by interval until somebody ends it.
//!
//! Counting ([`Counters`], [`Interval`]), the text ([`Layout`]) and the loop ([`Session`]) know nothing of each other's
//! business: counters come from a [`Source`], time and signals from a [`Clock`], and what is told goes to a [`View`].

mod basic;
mod counters;
mod cpu_cost;
mod cpumap;
mod cpumap_device;
mod cpumap_text;
mod delivery;
mod event;
mod interval;
mod ledger;
mod monitor;
mod pktgen;
mod preflight;
mod readings;
mod receiver;
mod redirect;
mod redirect_ledger;
mod sender;
mod sent;
mod sent_text;
mod session;
mod signals;
mod socket;
mod socket_text;
mod softirq;
mod tcp;
mod tcp_text;
mod text;
mod xsk;
mod xsk_device;
mod xsk_sender;
mod xsk_text;

pub use basic::BasicDevice;
pub use counters::{Counters, Delta, Group, Hop, Named, Place, XmitCounts};
pub use cpu_cost::CpuCost;
pub use cpumap::{CpumapCounters, CpumapInterval, Enqueues, Kthreads};
pub use cpumap_device::CpumapDevice;
pub use event::{
    Attached, End, EndedBy, Event, InterfaceCounted, LiveRun, ReceivedSession, SCHEMA, SinkStart, Start, Target,
    XskStart,
};
pub use interval::{
    Exceptions, FlowTransmitted, Interval, Received, RedirectErrors, Redirects, Transmitted, WallClock,
};
pub use ledger::{Account, Part};
pub use monitor::Monitor;
pub use pktgen::{PktgenLayout, PktgenSender};
pub use redirect::{RedirectDevice, RedirectSpec};
pub use sender::{LiveSender, SendSpec};
pub use sent::{Scaling, Sender, Sending, SendingEnd, SendingThread, Sent, SentBy, SentCounters};
pub use sent_text::{SentLayout, SentXskLayout, sizes_text, trial_text};
pub use session::{Clock, Limits, Session, Source, Told, View, Woken};
pub use signals::Signals;
pub use socket::{SocketInterval, SocketSender, SocketStart, StreamsReading};
pub use socket_text::{SocketLayout, end_text};
pub use softirq::{BusyCpu, SoftirqTime};
pub use tcp::{TcpInterval, TcpReading, TcpSendSpec, TcpSender, TcpStart};
pub use tcp_text::TcpLayout;
pub use text::{Layout, Lines};
pub use xsk::{XskCounters, XskInterval};
pub use xsk_device::XskDevice;
pub use xsk_sender::{XskSendSpec, XskSender};
pub use xsk_text::XskLayout;
