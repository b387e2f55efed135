package console

import (
	"context"
	"encoding/csv"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/ops"
)

// What operators did, for spreadsheets.
const (
	operationsCSV     = "operations.csv"
	jobsOperationsCSV = "jobsoperations.csv"
)

const perDownload = 1_000 // rows that one statement reads

// rows reads the rows below an ID, the newest first. next is 0 after the last.
type rows func(ctx context.Context, before int64) (all [][]string, next int64, err error)

func (c *Console) downloadOperations(w http.ResponseWriter, r *http.Request, g Grant) {
	consumer := r.URL.Query().Get("consumer")
	c.download(w, r, g, operationsCSV, []string{"number", "when", "consumer", "what", "by", "reason", "recorded"}, func(ctx context.Context, before int64) (lines [][]string, next int64, err error) {
		all, err := c.reads.consumers.Operations(ctx, ops.OperationFilter{Consumer: consumer, Before: before}, perDownload)
		for _, o := range all {
			next = o.ID
			lines = append(lines, []string{strconv.FormatInt(o.ID, 10), o.At.Format(time.RFC3339Nano), o.Consumer, string(o.Kind), o.By.Operator, o.By.Reason, string(o.Detail)})
		}
		return lines, next, err
	})
}

func (c *Console) downloadJobsOperations(w http.ResponseWriter, r *http.Request, g Grant) {
	c.download(w, r, g, jobsOperationsCSV, []string{"number", "when", "job", "queue", "what", "by", "reason", "recorded"}, func(ctx context.Context, before int64) (lines [][]string, next int64, err error) {
		all, err := c.reads.jobs.Operations(ctx, ops.OperationFilter{Before: before}, perDownload)
		for _, o := range all {
			next = o.ID
			lines = append(lines, []string{strconv.FormatInt(o.ID, 10), o.At.Format(time.RFC3339Nano), strconv.FormatInt(o.Job, 10), o.Queue, string(o.Kind), o.By.Operator, o.By.Reason, string(o.Detail)})
		}
		return lines, next, err
	})
}

// download sends all rows. If the database fails in the middle, download cuts the connection. So no
// client takes a part of the rows for all of them.
func (c *Console) download(w http.ResponseWriter, r *http.Request, g Grant, name string, head []string, read rows) {
	out := csv.NewWriter(w)
	for before, begun := int64(0), false; ; begun = true {
		ctx, cancel := context.WithTimeout(r.Context(), readLimit)
		all, next, err := read(ctx, before)
		err = pgdriver.CutOff(ctx, err)
		cancel()
		switch {
		case err != nil && begun:
			panic(http.ErrAbortHandler)
		case err != nil:
			c.fail(w, r, g, err)
			return
		case !begun:
			w.Header().Set("Content-Type", "text/csv; charset=utf-8")
			w.Header().Set("Content-Disposition", `attachment; filename="`+name+`"`)
			if r.Method == http.MethodHead {
				return
			}
			_ = out.Write(head)
		}
		for _, line := range all {
			for i, cell := range line {
				line[i] = harmless(cell)
			}
			_ = out.Write(line) // an error stays with the writer
		}
		if out.Flush(); out.Error() != nil || len(all) < perDownload {
			return
		}
		before = next
	}
}

// formula matches where a spreadsheet may begin a formula: at the beginning of a cell, and after a
// separator. A spreadsheet that separates cells by semicolons ignores the quotes of this file.
var formula = regexp.MustCompile(`(^|[;\t\r\n])([\p{Z}\v\f]*[=+\-@＝＋－＠])`)

// harmless keeps a spreadsheet from taking a text, or a part of it, for a formula.
func harmless(cell string) string {
	cell = formula.ReplaceAllString(cell, "$1'$2")
	if strings.ContainsAny(cell[:min(len(cell), 1)], "\t\r\n") {
		return "'" + cell
	}
	return cell
}
