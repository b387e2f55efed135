package pgdriver

import (
	"time"

	"github.com/pgfrontier/worker/store"
)

// LongestText is how long a statement is at most that is watched.
const LongestText = longestText

// MostTexts is of how many statements something is known.
const MostTexts = mostTexts

// Keeps reports whether a statement keeps its plan when it is sent through on.
func Keeps(on store.Querier, query string) bool {
	args, _ := on.(planned).begin(query, []any{1})
	return len(args) == 1
}

// KeepFrom sets when the plans of all statements are kept again.
func (p *Plans) KeepFrom(t time.Time) {
	p.texts.Range(func(_, known any) bool {
		known.(*text).until.Store(int64(t.Sub(origin)))
		return true
	})
}

// Took records how long a statement took that ends now.
func (p *Plans) Took(query string, d time.Duration, replanned bool, err error) {
	p.took(query, d, time.Now(), replanned, err)
}

// Replans reports whether an execution plans the statement again now.
func (p *Plans) Replans(query string) bool { return p.replans(query, time.Now()) }
