package console

import (
	"cmp"
	"context"
	"net/url"
)

// view is a page that is read.
type view struct {
	title, file string
	under       string // the entry of the navigation that the page belongs to; empty: the page has an entry of its own
	posts       bool   // the form of the page is sent to it: an address would be too long, or be followed by mistake
	read        func(r *reads, ctx context.Context, q query, g Grant) (any, error)
	part        func(s *snapshot, q url.Values) (any, error) // the data of its live updates; nil: it has none
}

// views are the pages, by their address.
var views = map[string]view{
	"":           {title: "Overview", file: "overview", read: (*reads).overview, part: overviewOf},
	"consumer":   {title: "Consumer", file: "consumer", under: "./", read: (*reads).consumer, part: func(s *snapshot, q url.Values) (any, error) { return consumerOf(s, q.Get("name")) }},
	"letters":    {title: "Dead letters", file: "letters", read: (*reads).letters},
	"letter":     {title: "Dead letter", file: "letter", under: "letters", read: (*reads).letter},
	"operations": {title: "Operations", file: "operations", read: (*reads).operations},
	"workers":    {title: "Workers", file: "workers", read: (*reads).workers, part: workersOf},
	"blocked":    {title: "Blocked", file: "blocked", read: (*reads).blocked, part: blockedOf},
	"gaps":       {title: "Gaps", file: "gaps", read: (*reads).gaps},
	"plan":       {title: "Plan", file: "plan", read: (*reads).plan, posts: true},
	"compare":    {title: "Compare", file: "compare", under: "./", read: (*reads).compare, posts: true},
	"event":      {title: "Event", file: "event", read: (*reads).event},
	"jobworkers": {title: "Job workers", file: "jobworkers", read: (*reads).jobWorkers},
	"queues":     {title: "Queues", file: "queues", read: (*reads).queues},
	"jobs":       {title: "Jobs", file: "jobs", read: (*reads).list},
	"job":        {title: "Job", file: "job", under: "jobs", read: (*reads).job},
	"schedules":  {title: "Schedules", file: "schedules", read: (*reads).schedules},
	"flows":      {title: "Flows", file: "flows", read: (*reads).runs},
	"flow":       {title: "Run of a flow", file: "flow", under: "flows", read: (*reads).run},
}

// tab is a link of the navigation.
type tab struct {
	Address, Text string
	Current       string // as aria-current has it; empty: it leads elsewhere
}

// Tabs are the navigation.
func (p *page) Tabs() (all []tab) {
	for _, name := range []string{"", "letters", "workers", "blocked", "gaps", "event", "plan", "operations", "queues", "jobs", "jobworkers", "schedules", "flows"} {
		t := tab{Address: cmp.Or(name, "./"), Text: views[name].title}
		if v, ok := views[p.Page]; ok && p.Page == name {
			t.Current = "page"
		} else if ok && v.under == t.Address {
			t.Current = "true"
		}
		all = append(all, t)
	}
	return all
}
