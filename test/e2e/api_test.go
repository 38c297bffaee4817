//go:build e2e

package e2e

import (
	"bytes"
	"crypto/tls"
	"encoding/json"
	"net/http"
	"testing"
	"time"
)

// api is a client of the cluster's API that must cope with a killed server. Unlike kubectl it needs
// no process for each request.
type api struct{ http.Client }

func newAPI() *api {
	return &api{http.Client{Timeout: 20 * time.Second,
		Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}}
}

const (
	podsOfTeam      = "/api/v1/namespaces/team/pods"
	claimsOfTeam    = "/apis/resource.k8s.io/v1/namespaces/team/resourceclaims"
	templatesOfTeam = "/apis/resource.k8s.io/v1/namespaces/team/resourceclaimtemplates"
)

// call makes one request. Its status is 0 if no server answers.
func (a *api) call(method, path string, body, into any) (status int, answer string) {
	data, err := json.Marshal(body)
	if err != nil {
		return 0, err.Error()
	}
	request, err := http.NewRequest(method, "https://127.0.0.1:6443"+path, bytes.NewReader(data))
	if err != nil {
		return 0, err.Error()
	}
	request.Header.Set("Authorization", "Bearer admin")
	request.Header.Set("Content-Type", "application/json")
	response, err := a.Do(request)
	if err != nil {
		return 0, err.Error()
	}
	defer response.Body.Close()
	var text bytes.Buffer
	if _, err := text.ReadFrom(response.Body); err != nil {
		return 0, err.Error()
	}
	if into != nil && response.StatusCode == http.StatusOK && json.Unmarshal(text.Bytes(), into) != nil {
		return 0, text.String()
	}
	return response.StatusCode, text.String()
}

// insists repeats a request until the server has carried it out. A server may have carried it out
// just before it was killed.
func (a *api) insists(t testing.TB, method, path string, body, into any) {
	t.Helper()
	eventually(t, method+" "+path, func() bool {
		switch status, answer := a.call(method, path, body, into); status {
		case http.StatusOK, http.StatusCreated, http.StatusAccepted:
			return true
		case http.StatusConflict:
			return method == http.MethodPost
		case http.StatusNotFound:
			return method == http.MethodDelete
		case http.StatusBadRequest, http.StatusUnprocessableEntity:
			t.Fatalf("%s %s: %s", method, path, answer)
		}
		return false
	})
}

// listed is the part of a list of pods or claims that the tests use.
type listed struct {
	Items []struct {
		Metadata struct {
			Name, UID, DeletionTimestamp string
		}
		Status struct {
			Phase, Reason, Message string
			ContainerStatuses      []struct {
				Name, ContainerID string
				RestartCount      int
				State             struct{ Running *struct{} }
			}
			Allocation *struct {
				Devices struct {
					Results []struct {
						Request, Driver, Device string
						ConsumedCapacity        struct{ Memory string }
					}
				}
			}
		}
	}
}
