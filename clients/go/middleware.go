package tidegate

import (
	"encoding/json"
	"errors"
	"log"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// Middleware asks for a use of the keys of each request, and answers 429 where it is refused. A
// request for which key returns none has no limit. Middleware does not wait: it panics if an option
// is MaxWait.
func (c *Client) Middleware(
	next http.Handler, key func(*http.Request) []string, options ...Option,
) http.Handler {
	if ask(nil, options).MaxWaitMs != nil {
		panic("tidegate: Middleware does not wait: MaxWait is for Hold")
	}
	watch := watch{now: time.Now}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		keys := key(r)
		if len(keys) == 0 {
			next.ServeHTTP(w, r)
			return
		}
		all := append([]Option{Keys(keys[1:]...)}, options...)
		result, err := c.Check(r.Context(), keys[0], all...)
		var invalid *InvalidRequest
		var invalidKey *InvalidKey
		switch {
		case errors.As(err, &invalidKey):
			// Let through, it would have no limit at all.
			answerProblem(w, http.StatusBadRequest, "key",
				"the key of this request is too long or is not valid text", nil)
			return
		case errors.As(err, &invalid):
			// What is wrong is how the middleware was set up: as though there were no server.
			result = c.withoutAnswer(err)
		case err != nil:
			// The request's context is over. The client may still be there, as after a deadline that
			// the application has set, and without an answer it would be told 200.
			answerUnavailable(w)
			return
		}
		watch.note(result)
		header := w.Header()
		for name, values := range result.Header {
			header[name] = values
		}
		switch {
		case result.Allowed:
			next.ServeHTTP(w, r)
		case result.Err != nil:
			answerUnavailable(w)
		default:
			answerProblem(w, http.StatusTooManyRequests, "over_limit",
				"the limit of this resource is reached", &result.RefusedBy)
		}
	})
}

// backAfter is how long none may have failed until answers are back.
const backAfter = 10 * time.Second

// watch logs when answers begin to fail, and when none has failed for backAfter. So answers that
// fail now and then, among others that come, do not fill the log.
type watch struct {
	now       func() time.Time
	isFailing atomic.Bool
	mutex     sync.Mutex
	failedAt  time.Time
}

func (w *watch) note(result Result) {
	err := result.Err
	if err == nil && !w.isFailing.Load() {
		return
	}
	w.mutex.Lock()
	defer w.mutex.Unlock()
	now := w.now()
	switch {
	case err != nil:
		w.failedAt = now
		if !w.isFailing.Swap(true) {
			done := "allowed"
			if !result.Allowed {
				done = "refused"
			}
			log.Printf("requests are %s without Tidegate: %v", done, err)
		}
	case now.Sub(w.failedAt) >= backAfter:
		if w.isFailing.Swap(false) {
			log.Print("Tidegate answers again")
		}
	}
}

func answerUnavailable(w http.ResponseWriter) {
	w.Header().Set("Retry-After", "1")
	answerProblem(w, http.StatusServiceUnavailable, "unavailable",
		"the limits of this resource cannot be checked", nil)
}

func answerProblem(w http.ResponseWriter, status int, reason, detail string, refusedBy *string) {
	problem := struct {
		Type      string  `json:"type"`
		Title     string  `json:"title"`
		Status    int     `json:"status"`
		Detail    string  `json:"detail"`
		Reason    string  `json:"reason"`
		RefusedBy *string `json:"refused_by,omitempty"`
	}{"about:blank", http.StatusText(status), status, detail, reason, refusedBy}
	// Text and a number are always JSON.
	body, _ := json.Marshal(problem)
	w.Header().Set("Content-Type", "application/problem+json")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	// A client that has gone reads nothing.
	_, _ = w.Write(body)
}
