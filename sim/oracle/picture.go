package oracle

import (
	"embed"
	"fmt"
	"html/template"
	"io"
	"slices"
	"strings"

	"github.com/pgfrontier/worker/sim/history"
)

//go:embed picture
var pictureFiles embed.FS

var picturePage = template.Must(template.New("page.html").
	Funcs(template.FuncMap{"thousands": thousands}).ParseFS(pictureFiles, "picture/page.html"))

// WritePicture draws the run as a page for a browser: one file that needs no
// network.
func (r *Report) WritePicture(w io.Writer) error {
	page := struct {
		Report             *Report
		State              string
		History            []history.Record
		Style              template.CSS
		Model, Lanes, Draw template.JS
	}{Report: r, State: r.state(), History: r.Evidence.History.Records()}
	var part = func(name string) string {
		text, _ := pictureFiles.ReadFile("picture/" + name) // embedded: always there
		return string(text)
	}
	page.Style, page.Model, page.Lanes, page.Draw = template.CSS(part("style.css")), template.JS(part("model.js")), template.JS(part("lanes.js")), template.JS(part("draw.js"))
	if err := picturePage.Execute(w, page); err != nil {
		return fmt.Errorf("sim: draw the picture: %w", err)
	}
	return nil
}

// state is the verdict in a word.
func (r *Report) state() string {
	switch {
	case r.Interrupted:
		return "interrupted"
	case r.Outcome == NotJudged:
		return "not judged"
	case r.Held:
		return "held"
	}
	return "BROKEN"
}

// see names the records that tell of a position: what became of it, and what
// a consumer did about it.
func see(e *history.Evidence, consumer string, position int64) string {
	if e.History == nil {
		return ""
	}
	const enough = 8
	var found []string
	for _, r := range e.History.Records() {
		if (r.Consumer == "" || within(consumer, r.Consumer)) && concerns(r.About, position) && len(found) < enough {
			found = append(found, fmt.Sprint(r.N))
		}
	}
	if len(found) == 0 {
		return ""
	}
	return " (history: " + strings.Join(found, ", ") + ")"
}

// concerns reports whether a record is about a position.
func concerns(about any, position int64) bool {
	holds := func(s history.Span) bool { return s.Holds(position) }
	switch x := about.(type) {
	case history.Transaction:
		return slices.ContainsFunc(x.Positions, holds) || slices.ContainsFunc(x.Abandoned, holds)
	case history.Batch:
		return x.First <= position && position <= x.Last || x.From < position && position <= x.To
	case history.Gap:
		return x.Holds(position)
	}
	return false
}
