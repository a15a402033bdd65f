//! A run of an adapter, as the adapter sees it.

use std::any::{Any, TypeId, type_name};
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use pillarbox_core::Timestamp;
use uuid::Uuid;

use super::extensions::Extensions;
use super::message::{Budget, Resources};
use crate::lease::Heartbeat;
use crate::request::Metadata;

/// A call of an adapter: the request and its run.
#[derive(Debug)]
#[non_exhaustive]
pub struct LoopCall<U> {
    /// The request.
    pub request: U,
    /// The run.
    pub run: Run,
}

impl<U> LoopCall<U> {
    /// Returns the call with another request, for middleware that converts requests.
    pub fn map<V>(self, change: impl FnOnce(U) -> V) -> LoopCall<V> {
        LoopCall { request: change(self.request), run: self.run }
    }
}

/// One run of an adapter: deadline, budget, resources, heartbeat. Cheap to clone.
///
/// ```
/// use pillarbox_runtime::loops::{NotRegistered, Run};
/// # struct Model; impl Model { async fn ask(&self, _: &str, _: Option<u64>) -> String { String::new() } }
///
/// async fn answer(question: String, run: Run) -> Result<String, NotRegistered> {
///     let model = run.live::<Model>()?;
///     let reply = model.ask(&question, run.budget().get("total_tokens")).await;
///     run.heartbeat().beat();
///     Ok(reply)
/// }
/// ```
#[derive(Clone)]
pub struct Run(Arc<RunInner>);

struct RunInner {
    request: RequestInfo,
    live: LiveResources,
    metadata: Metadata,
    heartbeat: Heartbeat,
    session_id: OnceLock<Uuid>,
    extensions: Extensions,
}

/// The part of a run that comes from its request.
pub(super) struct RequestInfo {
    pub(super) request_id: Uuid,
    pub(super) created_at: Timestamp,
    pub(super) deadline: Option<Timestamp>,
    pub(super) budget: Budget,
    pub(super) resources: Resources,
}

impl Run {
    pub(super) fn new(
        request: RequestInfo,
        live: LiveResources,
        metadata: Metadata,
        heartbeat: Heartbeat,
    ) -> Self {
        let (session_id, extensions) = (OnceLock::new(), Extensions::default());
        Self(Arc::new(RunInner { request, live, metadata, heartbeat, session_id, extensions }))
    }

    /// Returns the id of the request.
    pub fn request_id(&self) -> Uuid {
        self.0.request.request_id
    }

    /// Returns when the request was created, by the clock of the sender.
    pub fn created_at(&self) -> Timestamp {
        self.0.request.created_at
    }

    /// Returns when the answer is not wanted any more. The run is cancelled then.
    pub fn deadline(&self) -> Option<Timestamp> {
        self.0.request.deadline
    }

    /// Returns the time until the deadline.
    pub fn time_left(&self) -> Option<Duration> {
        self.0.request.deadline.map(|deadline| deadline.since(Timestamp::now()))
    }

    /// Returns the limits of the cost.
    pub fn budget(&self) -> &Budget {
        &self.0.request.budget
    }

    /// Returns the names and settings of the request.
    pub fn resources(&self) -> &Resources {
        &self.0.request.resources
    }

    /// Returns the resource of this type that is [registered](super::MainLoop::resource) with the loop.
    ///
    /// # Errors
    ///
    /// Fails if there is none.
    pub fn live<T: Send + Sync + 'static>(&self) -> Result<Arc<T>, NotRegistered> {
        self.0.live.get()
    }

    /// Returns the lease of the request, to report progress and to learn that it was lost.
    pub fn heartbeat(&self) -> &Heartbeat {
        &self.0.heartbeat
    }

    /// Returns the metadata of the message of the request.
    pub fn metadata(&self) -> &Metadata {
        &self.0.metadata
    }

    /// Sets the id of the session that the request belongs to, which the answer carries. Only the first call
    /// has an effect.
    pub fn set_session_id(&self, id: Uuid) {
        let _ = self.0.session_id.set(id);
    }

    /// Returns the session id, if the adapter has [set](Self::set_session_id) one.
    pub fn session_id(&self) -> Option<Uuid> {
        self.0.session_id.get().copied()
    }

    /// Returns the values that services around the adapter have attached to this run, by type.
    pub fn extensions(&self) -> &Extensions {
        &self.0.extensions
    }
}

impl fmt::Debug for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Run")
            .field("request_id", &self.0.request.request_id)
            .field("deadline", &self.0.request.deadline)
            .field("budget", &self.0.request.budget)
            .field("resources", &self.0.request.resources)
            .finish_non_exhaustive()
    }
}

/// The resources that are registered with a loop, by type.
#[derive(Clone, Default)]
pub(super) struct LiveResources(Arc<HashMap<TypeId, Arc<dyn Any + Send + Sync>>>);

impl LiveResources {
    pub(super) fn insert<T: Send + Sync + 'static>(&mut self, value: Arc<T>) {
        Arc::make_mut(&mut self.0).insert(TypeId::of::<T>(), value);
    }

    fn get<T: Send + Sync + 'static>(&self) -> Result<Arc<T>, NotRegistered> {
        let found = self.0.get(&TypeId::of::<T>()).cloned();
        let found = found.and_then(|value| value.downcast().ok());
        found.ok_or(NotRegistered { type_name: type_name::<T>() })
    }
}

/// The error of [`Run::live`]: the loop has no resource of this type.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the loop has no resource of type `{type_name}`: register one by `MainLoop::resource`")]
#[non_exhaustive]
pub struct NotRegistered {
    /// The name of the type.
    pub type_name: &'static str,
}

pillarbox_core::__error_debug!(struct NotRegistered { type_name });
