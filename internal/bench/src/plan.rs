//! How many servers a load needs: the measured cost of one message, times all of them.
//!
//! The costs are those that the suite `cluster` has measured on one machine; `docs/scale.md` says which
//! machine, what the formulas leave out, and what was never tried.

use std::fmt;

use clap::Args;

use crate::cluster::partitions_by_primary;
use crate::measure::Result;
use crate::report::grouped;

/// The most partitions that a queue can have.
const MAX_PARTITIONS: u64 = 1000;
/// The clients that a server takes, unless told otherwise (`maxclients`).
const MAX_CLIENTS: u64 = 10_000;
/// The bytes of the bodies with which costs were measured.
const MEASURED_BODY: u64 = 256;
const MICROS: f64 = 1e6;
const GB: f64 = 1e9;
const MB: f64 = 1e6;

/// What is asked of the servers, what one of them has, and what a message costs.
#[derive(Debug, Clone, Args)]
pub(crate) struct Plan {
    /// Messages that go all the way in a second: sent, received and acknowledged.
    #[arg(long, default_value_t = 1_000_000)]
    rate: u64,
    /// Messages that wait, or are in flight.
    #[arg(long, default_value_t = 1_000_000_000)]
    backlog: u64,
    /// Bytes of a body.
    #[arg(long, default_value_t = MEASURED_BODY)]
    body: u64,
    /// Messages in a call to a server, by batches or by callers that are put together.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=1000))]
    batch: u64,
    /// Messages per second, of the rate, that come to a queue where nothing waits but a receiver.
    #[arg(long, default_value_t = 0)]
    wake_ups: u64,
    /// Replicas of each primary.
    #[arg(long, default_value_t = 1)]
    replicas: u64,
    /// Whether senders wait for replicas (`?replicas=N`).
    #[arg(long)]
    confirmed: bool,
    /// Programs that use the queues [default: as many as the rate needs, at one core each].
    #[arg(long)]
    processes: Option<u64>,
    /// Partitions of the busiest queue for each primary, so that slots can be moved.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..))]
    partitions_per_primary: u64,
    /// The busiest queue, to see where the slots of its partitions are.
    #[arg(long, default_value = "jobs")]
    queue: String,
    /// Memory of a server, in GB.
    #[arg(long, default_value_t = 64.0)]
    server_memory: f64,
    /// Network of a server, in Gbit/s each way.
    #[arg(long, default_value_t = 10.0)]
    server_network: f64,
    /// How much of a core, of the memory and of the network may be used, in percent. The rest is for
    /// peaks, for snapshots, and for replicas that are filled anew.
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=100))]
    used: u64,
    #[command(flatten)]
    costs: Costs,
}

/// What was measured, with bodies of 256 bytes. Take your own: `pillarbox-bench cluster`.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Measured costs")]
struct Costs {
    /// A server's CPU time for a message, in µs, however many are in a call.
    #[arg(long, default_value_t = 11.0)]
    cpu_per_message: f64,
    /// A server's CPU time for the calls that send, receive and acknowledge, in µs, to be shared by
    /// all messages in them.
    #[arg(long, default_value_t = 65.0)]
    cpu_per_calls: f64,
    /// A server's CPU time for a message that wakes a receiver, in µs.
    #[arg(long, default_value_t = 280.0)]
    cpu_per_wake_up: f64,
    /// What a replica adds to its primary's CPU time, in percent.
    #[arg(long, default_value_t = 12.0)]
    cpu_per_replica: f64,
    /// A client's CPU time for a message, in µs.
    #[arg(long, default_value_t = 9.0)]
    cpu_of_client: f64,
    /// Bytes of a server's memory for a message that waits, its body aside.
    #[arg(long, default_value_t = 166.0)]
    memory_per_message: f64,
    /// Bytes to a server for a message, its body aside.
    #[arg(long, default_value_t = 204.0)]
    bytes_in: f64,
    /// Bytes from a server for a message, its body aside.
    #[arg(long, default_value_t = 68.0)]
    bytes_out: f64,
    /// Bytes from a primary to each replica for a message, its body aside.
    #[arg(long, default_value_t = 385.0)]
    bytes_replicated: f64,
    /// Commands per second that a process asks for which only waits.
    #[arg(long, default_value_t = 1.2)]
    commands_of_waiting: f64,
}

/// Something that servers have a limited amount of.
#[derive(Debug, Clone, Copy)]
struct Need {
    what: Resource,
    /// In all.
    needed: f64,
    /// What one primary may use.
    usable: f64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Resource {
    Cpu,
    Memory,
    NetworkIn,
    NetworkOut,
}

impl Resource {
    fn name(self) -> &'static str {
        match self {
            Self::Cpu => "CPU",
            Self::Memory => "memory",
            Self::NetworkIn => "network in",
            Self::NetworkOut => "network out",
        }
    }

    fn amount(self, amount: f64) -> String {
        match self {
            Self::Cpu => format!("{amount:.2} cores"),
            Self::Memory => format!("{:.1} GB", amount / GB),
            Self::NetworkIn | Self::NetworkOut => format!("{:.1} MB/s", amount / MB),
        }
    }
}

impl Need {
    /// How many primaries are enough for this alone.
    fn primaries(self) -> u64 {
        (self.needed / self.usable).ceil().max(1.0) as u64
    }
}

impl Plan {
    /// Says what is needed, and why.
    pub(crate) fn print(&self) -> Result<()> {
        if !(self.server_memory > 0.0 && self.server_network > 0.0) {
            return Err("a server has memory and a network: more than 0".into());
        }
        print!("{self}");
        Ok(())
    }

    /// A primary's CPU time for a message, in microseconds.
    fn cpu_each(&self) -> f64 {
        let Costs { cpu_per_message, cpu_per_calls, .. } = self.costs;
        (cpu_per_message + cpu_per_calls / self.batch as f64) * self.replicated_cpu()
    }

    fn replicated_cpu(&self) -> f64 {
        1.0 + self.replicas as f64 * self.costs.cpu_per_replica / 100.0
    }

    fn needs(&self) -> [Need; 4] {
        let (rate, body, costs) = (self.rate as f64, self.body as f64, &self.costs);
        let woken = self.wake_ups.min(self.rate) as f64;
        let cpu = (rate - woken) * self.cpu_each()
            + woken * costs.cpu_per_wake_up * self.replicated_cpu();
        let memory = self.backlog as f64 * (body + costs.memory_per_message);
        let bytes_in = rate * (body + costs.bytes_in);
        let replicated = self.replicas as f64 * (body + costs.bytes_replicated);
        let bytes_out = rate * (body + costs.bytes_out + replicated);
        let used = self.used as f64 / 100.0;
        let network = self.server_network * 1e9 / 8.0 * used;
        let need = |what, needed, usable| Need { what, needed, usable };
        [
            need(Resource::Cpu, cpu / MICROS, used),
            need(Resource::Memory, memory, self.server_memory * GB * used),
            need(Resource::NetworkIn, bytes_in, network),
            need(Resource::NetworkOut, bytes_out, network),
        ]
    }

    /// The need for which the most primaries are needed.
    fn decisive(&self) -> Need {
        let [first, rest @ ..] = self.needs();
        let larger = |most: Need, next: Need| {
            if next.primaries() > most.primaries() { next } else { most }
        };
        rest.into_iter().fold(first, larger)
    }

    /// How many programs use the queues.
    fn processes(&self) -> u64 {
        let cores = self.rate as f64 * self.costs.cpu_of_client / MICROS;
        let needed = (cores / (self.used as f64 / 100.0)).ceil().max(1.0) as u64;
        self.processes.unwrap_or(needed)
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rate, backlog, body, batch, replicas, used, costs, .. } = self;
        writeln!(
            f,
            "{} messages/s, {} waiting, bodies of {body} B, {batch} in a call",
            grouped(*rate),
            grouped(*backlog)
        )?;
        writeln!(f, "\n{:<12} {:>16} {:>22} {:>10}", "", "in all", "of a primary", "primaries")?;
        for need in self.needs() {
            writeln!(
                f,
                "{:<12} {:>16} {:>22} {:>10}",
                need.what.name(),
                need.what.amount(need.needed),
                format!("{used} %: {}", need.what.amount(need.usable)),
                grouped(need.primaries())
            )?;
        }
        let most = self.decisive();
        let primaries = most.primaries();
        let servers = primaries * (1 + replicas);
        writeln!(
            f,
            "\n{} primaries, because of {}; with {} each, {} servers",
            grouped(primaries),
            most.what.name(),
            plural(*replicas, "replica"),
            grouped(servers)
        )?;
        let share = |amount: u64| grouped(amount.div_ceil(primaries));
        let [cpu, memory, bytes_in, bytes_out] =
            self.needs().map(|need| need.what.amount(need.needed / primaries as f64));
        writeln!(f, "  each primary     {} messages/s, {} waiting", share(*rate), share(*backlog))?;
        writeln!(f, "                   {cpu}, {memory}, {bytes_in} in, {bytes_out} out")?;
        writeln!(
            f,
            "  of a message     {:.1} µs of a primary's CPU, {:.0} B of memory",
            self.cpu_each(),
            *body as f64 + costs.memory_per_message
        )?;
        let partitions = (primaries * self.partitions_per_primary).min(MAX_PARTITIONS);
        let held = partitions_by_primary(&self.queue, partitions as u16, primaries as usize);
        let (least, busiest) = (held.iter().min().unwrap_or(&0), held.iter().max().unwrap_or(&0));
        writeln!(
            f,
            "  partitions       {} of the busiest queue, {:.1} for each primary",
            grouped(partitions),
            partitions as f64 / primaries as f64
        )?;
        writeln!(
            f,
            "                   if slots stay where a new cluster has them, primaries have {least} \
             to {busiest} of {:?}",
            self.queue
        )?;
        let processes = self.processes();
        let each = if self.confirmed { 3 } else { 2 };
        writeln!(
            f,
            "  processes        {}, {} to each primary: {} at each, {} in all",
            grouped(processes),
            plural(each, "connection"),
            grouped(processes * each),
            grouped(processes * each * primaries)
        )?;
        writeln!(
            f,
            "  while they wait  {:.1} commands/s at each primary",
            processes as f64 * costs.commands_of_waiting / primaries as f64
        )?;
        if processes * each > MAX_CLIENTS {
            writeln!(f, "note: more connections than a server takes by default (maxclients)")?;
        }
        if primaries * self.partitions_per_primary > MAX_PARTITIONS {
            writeln!(f, "note: a queue has no more partitions than {MAX_PARTITIONS}")?;
        }
        if self.confirmed {
            writeln!(
                f,
                "note: the CPU time of waiting for replicas was not measured, and comes on top"
            )?;
        }
        if *body > 2 * MEASURED_BODY {
            writeln!(f, "note: CPU was measured with {MEASURED_BODY} B; larger bodies cost more")?;
        }
        Ok(())
    }
}

fn plural(count: u64, what: &str) -> String {
    format!("{} {what}{}", grouped(count), if count == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Program {
        #[command(flatten)]
        plan: Plan,
    }

    /// Costs that are easy to reckon with, and the given arguments.
    fn plan(arguments: &str) -> Plan {
        let costs = "--cpu-per-message 10 --cpu-per-calls 100 --cpu-per-wake-up 200 \
                     --cpu-per-replica 50 --cpu-of-client 30 --memory-per-message 144 \
                     --bytes-in 44 --bytes-out 44 --bytes-replicated 244 \
                     --commands-of-waiting 0.5 --used 50";
        let arguments = format!("plan {costs} {arguments}");
        Program::try_parse_from(arguments.split_whitespace()).unwrap().plan
    }

    fn primaries(plan: &Plan) -> [u64; 4] {
        plan.needs().map(Need::primaries)
    }

    #[test]
    fn cpu_is_that_of_the_message_and_its_share_of_the_calls_and_each_replica_adds_to_it() {
        assert_eq!(plan("--replicas 0 --batch 10").cpu_each(), 20.0);
        assert_eq!(plan("--replicas 0 --batch 1").cpu_each(), 110.0);
        assert_eq!(plan("--replicas 2 --batch 10").cpu_each(), 40.0);
    }

    #[test]
    fn the_scarcest_decides() {
        let by_cpu = plan("--rate 1000000 --backlog 0 --replicas 0");
        assert_eq!((by_cpu.decisive().what, by_cpu.decisive().primaries()), (Resource::Cpu, 40));
        let by_memory = plan("--rate 1 --backlog 1000000000 --server-memory 8");
        assert_eq!(by_memory.decisive().what, Resource::Memory);
        // 400 B each, in halves of 8 GB.
        assert_eq!(by_memory.decisive().primaries(), 100);
        let by_network = plan("--rate 1000000 --backlog 0 --server-network 0.1 --replicas 1");
        assert_eq!(by_network.decisive().what, Resource::NetworkOut);
        // 300 B to receivers and 500 to the replica, in halves of 12.5 MB/s.
        assert_eq!(by_network.decisive().primaries(), 128);
    }

    #[test]
    fn ten_times_the_load_needs_ten_times_the_primaries() {
        let one = plan("--rate 1000000 --backlog 1000000000");
        let ten = plan("--rate 10000000 --backlog 10000000000");
        for (one, ten) in primaries(&one).into_iter().zip(primaries(&ten)) {
            assert!((one * 10 - 9..=one * 10).contains(&ten), "{one} {ten}");
        }
    }

    #[test]
    fn nothing_needs_one_primary_and_one_process() {
        let nothing = plan("--rate 0 --backlog 0");
        assert_eq!(primaries(&nothing), [1; 4]);
        assert_eq!(nothing.processes(), 1);
    }

    #[test]
    fn wake_ups_cost_more_than_messages_of_full_batches_but_no_more_than_all_of_them() {
        let cores = |arguments| plan(arguments).needs()[0].needed;
        assert_eq!(cores("--replicas 0 --rate 1000 --wake-ups 0"), 0.02);
        assert_eq!(cores("--replicas 0 --rate 1000 --wake-ups 500"), 0.11);
        assert_eq!(cores("--replicas 0 --rate 1000 --wake-ups 5000"), 0.2);
    }

    #[test]
    fn processes_are_those_that_were_said_or_that_the_rate_needs() {
        assert_eq!(plan("--rate 1000000").processes(), 60);
        assert_eq!(plan("--rate 1000000 --processes 500").processes(), 500);
    }

    #[test]
    fn limits_are_pointed_out() {
        let text = plan("--rate 1000000 --processes 6000 --partitions-per-primary 100").to_string();
        assert!(
            text.contains("maxclients") && text.contains("more partitions than 1000"),
            "{text}"
        );
        let confirmed = plan("--processes 6 --confirmed").to_string();
        assert!(confirmed.contains("3 connections to each primary: 18 at each"), "{confirmed}");
        assert!(confirmed.contains("comes on top"), "{confirmed}");
        assert!(plan("--body 4096").to_string().contains("larger bodies cost more"));
    }

    #[test]
    fn costs_that_are_nothing_need_no_more_than_one_primary() {
        let free = plan("--rate 1000000 --backlog 0 --replicas 0");
        let costs = Costs { cpu_per_message: 0.0, cpu_per_calls: 0.0, ..free.costs };
        assert_eq!(primaries(&Plan { costs, ..free })[0], 1);
    }
}
