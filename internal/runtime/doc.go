// Package runtime has what all workers share: [Start], [Life], [Pool], [Failover], [Listener],
// [Probe], [Next] and [Observers]. The package must never know events, jobs or schedules.
package runtime
