package pgdriver

import (
	"time"

	"github.com/pgfrontier/worker/store"
)

// LongestText is the maximum length of a statement that is watched.
const LongestText = longestText

// MostTexts is the maximum number of statements that are watched.
const MostTexts = mostTexts

// Keeps reports whether a statement keeps its plan when it is sent through on.
func Keeps(on store.Querier, query string) bool {
	args, _ := on.(planned).begin(query, []any{1})
	return len(args) == 1
}

// KeepFrom sets the time from which on all plans are kept again.
func (p *Plans) KeepFrom(t time.Time) {
	p.texts.Range(func(_, known any) bool {
		known.(*text).until.Store(int64(t.Sub(origin)))
		return true
	})
}

// Took records the duration of a statement that ends now.
func (p *Plans) Took(query string, d time.Duration, replanned bool, err error) {
	p.took(query, d, time.Now(), replanned, err)
}

// Replans reports whether an execution plans the statement again, after a time from now on.
func (p *Plans) Replans(query string, after time.Duration) bool {
	return p.replans(query, time.Now().Add(after))
}
