package schedule

import (
	"errors"
	"fmt"
	"runtime/debug"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/jobs"
)

// Schedule is a name, the times, and the job of a tick.
type Schedule struct {
	name    string
	spec    Spec
	job     func(tick time.Time) jobs.Args
	enqueue []jobs.EnqueueOption
	catchUp int
}

// Option is an option of [Job].
type Option func(*Schedule)

// Job makes a schedule. job returns the arguments of a tick's job. job may be called more than once
// for a tick, and must return the same arguments. The Meta of a job names the schedule and the
// tick.
func Job(name string, spec Spec, job func(tick time.Time) jobs.Args, opts ...Option) Schedule {
	s := Schedule{name: name, spec: spec, job: job, catchUp: 1}
	for _, o := range opts {
		if o != nil {
			o(&s)
		}
	}
	return s
}

// Enqueue sets options of the jobs, such as their queue. With [jobs.Unique] a tick enqueues no job
// while the job of an earlier tick has not finished.
func Enqueue(opts ...jobs.EnqueueOption) Option {
	return func(s *Schedule) { s.enqueue = append(s.enqueue, opts...) }
}

// CatchUp bounds how many missed ticks are enqueued late. The latest ticks are enqueued: 1 by
// default. With 0 no missed tick is enqueued: a tick that is more than a minute ago is dropped.
func CatchUp(ticks int) Option { return func(s *Schedule) { s.catchUp = ticks } }

// late is how long after its time a tick still counts as in time, even if CatchUp is 0.
const late = time.Minute

const (
	maxName    = 200    // bytes
	maxCatchUp = 10_000 // jobs in one transaction
)

// check returns an error if the schedule is invalid.
func (s *Schedule) check() error {
	var all []error
	fail := func(format string, args ...any) {
		all = append(all, fmt.Errorf("schedule %s: "+format, append([]any{errtext.Value(s.name)}, args...)...))
	}
	if s.name == "" || len(s.name) > maxName || !utf8.ValidString(s.name) || strings.ContainsRune(s.name, 0) {
		fail("the name takes 1 to %d bytes of text", maxName)
	}
	if s.spec == nil {
		fail("the spec is nil: use Every, Daily or a schedule of cron")
	} else if c, ok := s.spec.(interface{ check() error }); ok {
		if err := c.check(); err != nil {
			fail("%w", err)
		}
	}
	if s.job == nil {
		fail("job is nil: return the arguments of the jobs from it")
	}
	if s.catchUp < 0 || s.catchUp > maxCatchUp {
		fail("CatchUp: %d is out of range, allowed is 0 to %d", s.catchUp, maxCatchUp)
	}
	return errtext.Join(all...)
}

// guarded calls f and returns a panic as an error. f calls code of the user.
func guarded(f func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("the spec, or the function that makes the job, panicked%s: %s", errtext.Where(debug.Stack()), errtext.Panic(v))
		}
	}()
	return f()
}

// tickMeta is the Meta of a tick's job.
type tickMeta struct {
	Schedule string    `json:"schedule"`
	Tick     time.Time `json:"tick"`
}

// entry returns the job of a tick.
func (s *Schedule) entry(tick time.Time) (e jobs.EnqueueParams, err error) {
	args := s.job(tick)
	if args == nil {
		return e, errors.New("the function that makes the job returned nil")
	}
	return jobs.EnqueueParams{Args: args, Options: append([]jobs.EnqueueOption{jobs.Meta(tickMeta{s.name, tick})}, s.enqueue...)}, nil
}
