package migrations

import (
	"slices"

	"github.com/pgfrontier/worker/internal/rights"
)

// JobsRoles names the database roles of a deployment of jobs, as [Roles] does for consumers.
type JobsRoles struct {
	// Client enqueues jobs, reads their outcomes, and cancels jobs. A handler or a consumer
	// that enqueues jobs must be a Client, too, and so must a Scheduler.
	Client string
	// Worker runs jobs, and advances flows. Grant the privileges of the jobs' handlers separately.
	Worker string
	// Operator runs all operations of ops.Jobs, and calls CheckJobs.
	Operator string
	// Reader reads all tables of jobs, arguments and results included.
	Reader string
}

// DefaultJobsRoles returns job_client, job_worker, job_operator and job_reader.
func DefaultJobsRoles() JobsRoles {
	return JobsRoles{Client: "job_client", Worker: "job_worker", Operator: "job_operator", Reader: "job_reader"}
}

// JobsGrants returns the privileges of the roles on the tables of jobs as SQL text, like
// [Grants].
//
// A worker keeps a record of the events for which consumers have enqueued jobs, until the
// events are settled. Therefore a worker reads the checkpoints of the consumers, if their
// tables exist when the text is executed.
func JobsGrants(c *Config, r JobsRoles) (string, error) {
	s, err := newJobsSchema(c)
	if err != nil {
		return "", err
	}
	jobs, err := c.jobs()
	if err != nil {
		return "", err
	}
	events, err := c.tables()
	if err != nil {
		return "", err
	}
	return s.grantText(grantsHeader, "JobsRoles", []grantee{
		{"Client", r.Client, "enqueues jobs, reads their outcomes, and cancels them", whole(rights.JobsClient(jobs)), ""},
		{"Worker", r.Worker, "runs jobs, whose handlers need more", whole(append(rights.JobsWorker(jobs, true), rights.JobsFlows(jobs)...)), grantIfThere("To see how far consumers are that enqueue jobs, if there are any.", whole(rights.JobsEmitters(events)), r.Worker)},
		{"Operator", r.Operator, "does what ops.Jobs does", slices.Concat(whole(rights.JobsOperator(jobs)), rights.JobsMarks(jobs), rights.On(s.record, "SELECT")), ""},
		{"Reader", r.Reader, "reads all about jobs, arguments and results included", s.readAll(), ""},
	})
}
