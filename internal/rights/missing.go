package rights

import (
	"context"
	"embed"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/pgfrontier/worker/internal/ident"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/internal/refusal"
	"github.com/pgfrontier/worker/internal/sqltext"
	"github.com/pgfrontier/worker/store"
)

//go:embed sql/*.sql
var files embed.FS

var (
	texts   = sqltext.Parse(files)
	missing = texts.Statement("missing", nil)
	hidden  = texts.Statement("hidden", nil)
)

// Missing returns remedies for the missing needs of q's role: GRANTs, and statements that let
// the role see all rows. A superuser lacks nothing.
func Missing(ctx context.Context, q store.Querier, needs []Need) (remedies []string, err error) {
	var super bool
	if err := q.QueryRowContext(ctx, `SELECT rolsuper FROM pg_roles WHERE rolname = current_user`).Scan(&super); err != nil {
		return nil, fmt.Errorf("read the privileges: %w", err)
	}
	if super {
		return nil, nil
	}
	for _, statement := range []string{missing, hidden} {
		more, err := queryNeeds(ctx, q, statement, needs)
		if err != nil {
			return nil, fmt.Errorf("read the privileges: %w", err)
		}
		remedies = append(remedies, more...)
	}
	return remedies, nil
}

// Check returns [refusal.ErrPrivileges] with the remedies of [Missing], and with others. hint
// stands before the remedies.
func Check(ctx context.Context, q store.Querier, hint string, needs []Need, others ...string) error {
	remedies, err := Missing(ctx, q, needs)
	if remedies = append(remedies, others...); err == nil && len(remedies) > 0 {
		err = fmt.Errorf("%w%s: %s", refusal.ErrPrivileges, hint, strings.Join(remedies, "; "))
	}
	return err
}

// Hidden returns the remedy that lets the role of q's session see all rows of the tables. It is
// empty if the role sees them. A missing table counts as seen.
func Hidden(ctx context.Context, q store.Querier, tables ...ident.Table) (remedy string, err error) {
	all, err := queryNeeds(ctx, q, hidden, Reads(tables...))
	if err != nil {
		return "", fmt.Errorf("read the row-level security: %w", err)
	}
	return strings.Join(all, "; "), nil
}

func queryNeeds(ctx context.Context, q store.Querier, statement string, needs []Need) ([]string, error) {
	list, err := json.Marshal(needs)
	if err != nil {
		return nil, err
	}
	return pgdriver.QueryAll(ctx, q, pgdriver.Value[string], statement, string(list))
}

// HiddenAppenders names some roles that may append to a table of events and whose sessions q's
// role cannot see.
func HiddenAppenders(ctx context.Context, q store.Querier, table string) (roles string, err error) {
	err = q.QueryRowContext(ctx, texts["hidden_appenders"], table).Scan(&roles)
	return roles, err
}
