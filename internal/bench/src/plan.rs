//! Estimates how many servers a load needs, from the measured cost of one message.
//!
//! The default costs were measured by the suite `cluster` on one machine. `docs/capacity-planning.md` describes the
//! machine and the model, and what neither covers.

use std::fmt;

use clap::Args;

use crate::cluster::partitions_by_primary;
use crate::measure::Result;
use crate::report::grouped;

/// Maximum number of partitions of a queue.
const MAX_PARTITIONS: u64 = 1000;
/// Default maximum number of clients of a server (`maxclients`).
const MAX_CLIENTS: u64 = 10_000;
/// Size of the bodies with which the costs were measured, in bytes.
const MEASURED_BODY: u64 = 256;
const MICROS: f64 = 1e6;
const GB: f64 = 1e9;
const MB: f64 = 1e6;

/// The load, the resources of one server, and the cost of a message.
#[derive(Debug, Clone, Args)]
pub(crate) struct Plan {
    /// Messages per second that are sent, received and acknowledged.
    #[arg(long, default_value_t = 1_000_000)]
    rate: u64,
    /// Messages in the queues, ready, delayed or in flight.
    #[arg(long, default_value_t = 1_000_000_000)]
    backlog: u64,
    /// Size of a body, in bytes.
    #[arg(long, default_value_t = MEASURED_BODY)]
    body: u64,
    /// Messages per call to a server, from batches or from coalesced callers.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=1000))]
    batch: u64,
    /// Part of the rate that is sent to an empty queue with a waiting receiver, in messages per second.
    #[arg(long, default_value_t = 0)]
    wake_ups: u64,
    /// Number of replicas of each primary.
    #[arg(long, default_value_t = 1)]
    replicas: u64,
    /// Whether senders wait for replicas (`?replicas=N`).
    #[arg(long)]
    confirmed: bool,
    /// Number of programs that use the queues [default: as many as the rate needs, with one core each].
    #[arg(long)]
    processes: Option<u64>,
    /// Partitions of the busiest queue per primary; several, so that slots can be moved.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..))]
    partitions_per_primary: u64,
    /// Name of the busiest queue, which determines the slots of its partitions.
    #[arg(long, default_value = "jobs")]
    queue: String,
    /// Memory of a server, in GB.
    #[arg(long, default_value_t = 64.0)]
    server_memory: f64,
    /// Network bandwidth of a server in each direction, in Gbit/s.
    #[arg(long, default_value_t = 10.0)]
    server_network: f64,
    /// Planned utilization of a core, of the memory and of the network, in percent. The rest is for peaks,
    /// snapshots, and replicas that synchronize.
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=100))]
    used: u64,
    #[command(flatten)]
    costs: Costs,
}

/// Costs, measured with bodies of 256 bytes. `pillarbox-bench cluster` measures your own.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Measured costs")]
struct Costs {
    /// CPU time of a server per message, in µs, independent of the batch size.
    #[arg(long, default_value_t = 11.0)]
    cpu_per_message: f64,
    /// CPU time of a server for the three calls that send, receive and acknowledge, in µs, shared by all
    /// messages of the calls.
    #[arg(long, default_value_t = 65.0)]
    cpu_per_calls: f64,
    /// CPU time of a server for a message that wakes a receiver, in µs.
    #[arg(long, default_value_t = 280.0)]
    cpu_per_wake_up: f64,
    /// CPU time that a replica adds to its primary, in percent.
    #[arg(long, default_value_t = 12.0)]
    cpu_per_replica: f64,
    /// CPU time of a client per message, in µs.
    #[arg(long, default_value_t = 9.0)]
    cpu_of_client: f64,
    /// Memory of a server per message, without the body, in bytes.
    #[arg(long, default_value_t = 166.0)]
    memory_per_message: f64,
    /// Bytes sent to a server per message, without the body.
    #[arg(long, default_value_t = 204.0)]
    bytes_in: f64,
    /// Bytes sent by a server per message, without the body.
    #[arg(long, default_value_t = 68.0)]
    bytes_out: f64,
    /// Bytes sent by a primary to each replica per message, without the body.
    #[arg(long, default_value_t = 385.0)]
    bytes_replicated: f64,
    /// Commands per second of a process that only waits.
    #[arg(long, default_value_t = 1.2)]
    commands_of_waiting: f64,
}

/// The need for one resource.
#[derive(Debug, Clone, Copy)]
struct Need {
    what: Resource,
    /// Total amount.
    needed: f64,
    /// Amount that one primary may use.
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
    /// Number of primaries that this resource alone needs.
    fn primaries(self) -> u64 {
        (self.needed / self.usable).ceil().max(1.0) as u64
    }
}

impl Plan {
    /// Prints the plan.
    pub(crate) fn print(&self) -> Result<()> {
        if !(self.server_memory > 0.0 && self.server_network > 0.0) {
            return Err("the memory and the network of a server must be more than 0".into());
        }
        print!("{self}");
        Ok(())
    }

    /// CPU time of a primary per message, in microseconds.
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

    /// Returns the resource that needs the most primaries.
    fn decisive(&self) -> Need {
        let [first, rest @ ..] = self.needs();
        let larger = |most: Need, next: Need| {
            if next.primaries() > most.primaries() { next } else { most }
        };
        rest.into_iter().fold(first, larger)
    }

    /// Number of programs that use the queues.
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
            "{} messages/s, {} queued, {body} B bodies, {} per call",
            grouped(*rate),
            grouped(*backlog),
            plural(*batch, "message")
        )?;
        writeln!(f, "\n{:<12} {:>16} {:>22} {:>10}", "", "total", "per primary", "primaries")?;
        for need in self.needs() {
            writeln!(
                f,
                "{:<12} {:>16} {:>22} {:>10}",
                need.what.name(),
                need.what.amount(need.needed),
                format!("{used}%: {}", need.what.amount(need.usable)),
                grouped(need.primaries())
            )?;
        }
        let most = self.decisive();
        let primaries = most.primaries();
        let servers = primaries * (1 + replicas);
        writeln!(
            f,
            "\n{} primaries, limited by {}; with {} each, {} servers",
            grouped(primaries),
            most.what.name(),
            plural(*replicas, "replica"),
            grouped(servers)
        )?;
        let share = |amount: u64| grouped(amount.div_ceil(primaries));
        let [cpu, memory, bytes_in, bytes_out] =
            self.needs().map(|need| need.what.amount(need.needed / primaries as f64));
        writeln!(f, "  each primary     {} messages/s, {} queued", share(*rate), share(*backlog))?;
        writeln!(f, "                   {cpu}, {memory}, {bytes_in} in, {bytes_out} out")?;
        writeln!(
            f,
            "  per message      {:.1} µs of CPU on a primary, {:.0} B of memory",
            self.cpu_each(),
            *body as f64 + costs.memory_per_message
        )?;
        let partitions = (primaries * self.partitions_per_primary).min(MAX_PARTITIONS);
        let counts = partitions_by_primary(&self.queue, partitions as u16, primaries as usize);
        let (least, busiest) =
            (counts.iter().min().unwrap_or(&0), counts.iter().max().unwrap_or(&0));
        writeln!(
            f,
            "  partitions       {} for the busiest queue, {:.1} per primary",
            grouped(partitions),
            partitions as f64 / primaries as f64
        )?;
        writeln!(
            f,
            "                   with the slots of a new cluster, each primary has {least} to \
             {busiest} of {:?}",
            self.queue
        )?;
        let processes = self.processes();
        let each = if self.confirmed { 3 } else { 2 };
        writeln!(
            f,
            "  processes        {}, with {} to each primary: {} per primary, {} in total",
            grouped(processes),
            plural(each, "connection"),
            grouped(processes * each),
            grouped(processes * each * primaries)
        )?;
        writeln!(
            f,
            "  idle             {:.1} commands/s per primary",
            processes as f64 * costs.commands_of_waiting / primaries as f64
        )?;
        if processes * each > MAX_CLIENTS {
            writeln!(f, "note: more connections than a server accepts by default (maxclients)")?;
        }
        if primaries * self.partitions_per_primary > MAX_PARTITIONS {
            writeln!(f, "note: a queue has at most {MAX_PARTITIONS} partitions")?;
        }
        if self.confirmed {
            writeln!(
                f,
                "note: excludes the CPU time of waiting for replicas, which was not measured"
            )?;
        }
        if *body > 2 * MEASURED_BODY {
            writeln!(
                f,
                "note: CPU was measured with {MEASURED_BODY} B bodies; larger bodies cost more"
            )?;
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

    /// Round costs, and the given arguments.
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
        assert!(text.contains("maxclients") && text.contains("at most 1000 partitions"), "{text}");
        let confirmed = plan("--processes 6 --confirmed").to_string();
        assert!(confirmed.contains("3 connections to each primary: 18 per primary"), "{confirmed}");
        assert!(confirmed.contains("was not measured"), "{confirmed}");
        assert!(plan("--body 4096").to_string().contains("larger bodies cost more"));
    }

    #[test]
    fn costs_that_are_nothing_need_no_more_than_one_primary() {
        let free = plan("--rate 1000000 --backlog 0 --replicas 0");
        let costs = Costs { cpu_per_message: 0.0, cpu_per_calls: 0.0, ..free.costs };
        assert_eq!(primaries(&Plan { costs, ..free })[0], 1);
    }
}
