package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/urfave/cli/v2"
	"k8s.io/klog/v2"

	"github.com/gpuledger/gpuledger/kube/usage"
	"github.com/gpuledger/gpuledger/kube/webhook"
)

func webhookCommand() *cli.Command {
	return &cli.Command{
		Name:  "webhook",
		Usage: "reads what pods ask for in the names of other GPU schedulers: refuses, or changes the pod",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "resources-file",
				Usage: "the `FILE` with the names that are read; without one, ours"},
			&cli.StringFlag{Name: "agent", Value: "device-plugin",
				Usage: "dra: pods get claims; device-plugin: pods get the scheduler"},
			&cli.StringFlag{Name: "scheduler", Value: "gpuledger-scheduler",
				Usage: "`NAME` of the scheduler for pods that name none; empty: the cluster's has the " +
					"extender"},
			&cli.StringSliceFlag{Name: "instead-of",
				Usage: "`NAME` of a scheduler that pods with claims do not need, can be repeated; without " +
					"it, gpuledger-scheduler, and kai-scheduler if KAI's names are read"},
			&cli.StringFlag{Name: "listen", Value: ":9443", Usage: "the `ADDRESS` for the API server"},
			&cli.StringFlag{Name: "service", Value: "gpuledger-system/gpuledger-webhook",
				Usage: "`NAMESPACE/NAME` of the Service, and of the Secret with the certificate"},
			&cli.StringFlag{Name: "url",
				Usage: "`URL` by which the API server calls, instead of the Service"},
			&cli.StringFlag{Name: "configuration", Value: "gpuledger",
				Usage: "`NAME` of the webhook configurations, which have to exist"},
			&cli.StringSliceFlag{Name: "exempt",
				Usage: "`NAMESPACE` whose pods are not looked at, can be repeated; without it, the " +
					"Service's"},
			kubeconfigFlag(),
			&cli.DurationFlag{Name: "interval", Value: time.Minute,
				Usage: "interval between two looks at the certificate and the configurations"}},
		Action: serveWebhook,
	}
}

// webhookArguments are the arguments of the command, checked.
type webhookArguments struct {
	rules        webhook.Rules
	certificate  *webhook.Certificate
	registration webhook.Registration
}

func serveWebhook(c *cli.Context) error {
	a, err := readWebhook(c)
	if err != nil {
		return err
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	klog.SetSlogLogger(log)
	client, err := clientOf(c, usual)
	if err != nil {
		return err
	}
	a.certificate.Client, a.registration.Client = client, client
	templates := webhook.Templates{Client: client, Now: time.Now}
	var ready atomic.Bool
	handler := webhook.Handler{Rules: a.rules, Log: log}
	// the API server waits for 10 s
	server := &http.Server{ReadHeaderTimeout: 10 * time.Second, ReadTimeout: 10 * time.Second,
		WriteTimeout: 20 * time.Second, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 16 << 10,
		TLSConfig: &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: a.certificate.Serving},
		Handler: handler.Mux(func() error {
			if !ready.Load() {
				return errors.New("the webhook is not entered yet")
			}
			return nil
		})}
	listener, err := net.Listen("tcp", c.String("listen"))
	if err != nil {
		return fmt.Errorf("cannot serve the API server: %w", err)
	}
	enter := repetition{what: "webhook", interval: c.Duration("interval"), retry: time.Second,
		limit: time.Minute, do: func(ctx context.Context) error {
			trust, err := a.certificate.Ensure(ctx)
			if err == nil {
				err = a.registration.Ensure(ctx, trust)
			}
			if err == nil {
				ready.Store(true)
			}
			return err
		}}
	if a.rules.Claims {
		controller := &webhook.Controller{Templates: templates, Rules: a.rules,
			Exempt: a.registration.Exempt, Log: log}
		go func() {
			// it is entered only when it makes templates: without them new pods would wait for ever
			err := controller.Run(c.Context, func() { go repeat(c.Context, log, enter) })
			if err != nil && c.Context.Err() == nil {
				log.Error("the templates of pods' claims", "error", err)
			}
		}()
		go repeat(c.Context, log, repetition{what: "templates", interval: 5 * time.Minute,
			retry: time.Second, limit: time.Minute, do: templates.Collect})
	} else {
		go repeat(c.Context, log, enter)
	}
	context.AfterFunc(c.Context, func() { _ = server.Close() })
	log.Info("serving the API server", "listen", listener.Addr().String(), "claims", a.rules.Claims)
	if err := server.ServeTLS(listener, "", ""); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("cannot serve the API server: %w", err)
	}
	return nil
}

func readWebhook(c *cli.Context) (a webhookArguments, err error) {
	names, err := readNames(c.String("resources-file"))
	if err != nil {
		return a, err
	}
	a.rules = webhook.Rules{Dialect: names, Scheduler: c.String("scheduler"),
		Replaced: c.StringSlice("instead-of")}
	if !c.IsSet("instead-of") {
		a.rules.Replaced = append(names.Schedulers(), "gpuledger-scheduler")
	}
	switch c.String("agent") {
	case "dra":
		a.rules.Claims = true
	case "device-plugin":
	default:
		return a, usage.Error(c, "cannot use --agent %q: want dra or device-plugin", c.String("agent"))
	}
	if c.Duration("interval") <= 0 {
		return a, usage.Error(c, "cannot look at the certificate every %s: --interval has to be longer",
			c.Duration("interval"))
	}
	namespace, name, found := strings.Cut(c.String("service"), "/")
	if !found || namespace == "" || name == "" || strings.Contains(name, "/") {
		return a, usage.Error(c, "cannot use --service %q: want NAMESPACE/NAME", c.String("service"))
	}
	host := name + "." + namespace + ".svc"
	if text := c.String("url"); text != "" {
		u, err := url.Parse(text)
		if err != nil || u.Scheme != "https" || u.Hostname() == "" {
			return a, usage.Error(c, "cannot use --url %q: want https://HOST:PORT", text)
		}
		host = u.Hostname()
	}
	a.certificate = &webhook.Certificate{Namespace: namespace, Name: name, Hosts: []string{host},
		Now: time.Now}
	exempt := c.StringSlice("exempt")
	if len(exempt) == 0 {
		exempt = []string{namespace}
	}
	a.registration = webhook.Registration{Name: c.String("configuration"), Namespace: namespace,
		Service: name, URL: c.String("url"), Dialect: names, Exempt: exempt}
	return a, nil
}
