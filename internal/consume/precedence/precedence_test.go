package precedence

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker/internal/liveness"
	"github.com/pgfrontier/worker/internal/progress"
	"github.com/pgfrontier/worker/internal/scope"
)

// Of the workers with precedence, a living one with the greatest scope counts.
func TestLivingBuildWithGreatestScopeIsFirst(t *testing.T) {
	of := func(version int, lives bool) ahead {
		return ahead{progress.Selecting{Worker: uuid.New(), Scope: scope.Of(nil, version, "", "")}, lives}
	}
	for name, c := range map[string]struct {
		all  []ahead
		want int // index; below 0: none
	}{
		"none":                     {nil, -1},
		"one that seems dead":      {[]ahead{of(2, false)}, 0},
		"a living one of lower":    {[]ahead{of(3, false), of(2, true)}, 1},
		"the greatest of living":   {[]ahead{of(2, true), of(4, true), of(3, true), of(5, false)}, 1},
		"the first of those equal": {[]ahead{of(2, true), of(2, true)}, 0},
	} {
		got := first(c.all)
		if c.want < 0 && got != nil || c.want >= 0 && (got == nil || got.Worker != c.all[c.want].Worker) {
			t.Errorf("%s: %+v, want %d", name, got, c.want)
		}
	}
}

// Workers with precedence count as dead only if all have seemed dead for a while, without a
// sign of life in between.
func TestDeadBuildsNeedConfirmation(t *testing.T) {
	var p Precedence
	dead, living := &ahead{}, &ahead{lives: true}
	now := time.Now()
	for i, step := range []struct {
		after time.Duration
		first *ahead
		waits bool
	}{
		{0, dead, true}, {liveness.Confirmation - 1, dead, true}, {1, dead, false},
		{1, living, true}, {liveness.Confirmation, dead, true}, {liveness.Confirmation - 1, dead, true},
		{1, nil, false}, {liveness.Confirmation, dead, true}, {liveness.Confirmation, dead, false},
	} {
		now = now.Add(step.after)
		if waits := p.sighted(step.first, now) != nil; waits != step.waits {
			t.Errorf("step %d: it waits: %v, want %v", i, waits, step.waits)
		}
	}
}
