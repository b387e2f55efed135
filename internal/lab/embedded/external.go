package embedded

import (
	"context"
	"fmt"
	"net/url"
	"strings"

	"github.com/jackc/pgx/v5"
)

// connect makes sure that the server which was named is there.
func connect(ctx context.Context, connString, source string) (*Server, error) {
	cfg, err := pgx.ParseConfig(connString)
	if err != nil {
		// The parser's error quotes the string, and with it perhaps a password.
		return nil, fmt.Errorf("embedded: %s: this is no connection string such as postgres://user:password@host:5432/database (it is not shown, it may hold a password)", source)
	}
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("embedded: %s: %w", source, err)
	}
	version, _, _ := strings.Cut(conn.PgConn().ParameterStatus("server_version"), " ")
	if err := conn.Close(ctx); err != nil {
		return nil, fmt.Errorf("embedded: %s: %w", source, err)
	}
	return &Server{external: connString, source: source, version: version}, nil
}

// withDatabase names another database in a connection string that was parsed
// before. Empty: the string as it is.
func withDatabase(connString, dbname string) string {
	if dbname == "" {
		return connString
	}
	if !strings.HasPrefix(connString, "postgres://") && !strings.HasPrefix(connString, "postgresql://") {
		// key=value words: the last one counts
		return connString + " dbname='" + strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(dbname) + "'"
	}
	u, err := url.Parse(connString)
	if err != nil {
		return connString
	}
	u.Path = "/" + dbname
	query := u.Query()
	query.Del("dbname")
	query.Del("database")
	u.RawQuery = query.Encode()
	return u.String()
}
