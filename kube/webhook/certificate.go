package webhook

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// A certificate is made anew when less than renewBefore of its time is left.
const (
	validFor    = 365 * 24 * time.Hour
	renewBefore = 90 * 24 * time.Hour
)

// trusted is the key of the Secret with the certificates that the API server is to trust: the
// present one and the one before, which another replica may still use.
const trusted = "ca.crt"

// Certificate is the server's certificate. It signs itself, and the Secret has it for all replicas.
type Certificate struct {
	Client          kubernetes.Interface
	Namespace, Name string   // of the Secret
	Hosts           []string // names or addresses by which the API server calls
	Now             func() time.Time

	mu      sync.Mutex
	serving *tls.Certificate
	next    *tls.Certificate // used from the next call of Ensure on
	leaf    []byte           // of the newest of both
}

// Ensure reads the certificate from the Secret, or makes it, and returns what the API server is to
// trust. A new certificate is used one call later, when the API server has been given it. The first
// one is used at once.
func (c *Certificate) Ensure(ctx context.Context) (trust []byte, err error) {
	secret, err := c.secret(ctx)
	if err != nil {
		return nil, fmt.Errorf("cannot keep the webhook's certificate in Secret %s/%s: %w", c.Namespace,
			c.Name, err)
	}
	pair, err := tls.X509KeyPair(secret.Data[corev1.TLSCertKey], secret.Data[corev1.TLSPrivateKeyKey])
	if err != nil {
		return nil, fmt.Errorf("cannot use the webhook's certificate: %w", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.next != nil {
		c.serving, c.next = c.next, nil
	}
	if !bytes.Equal(pair.Certificate[0], c.leaf) {
		c.leaf, c.next = pair.Certificate[0], &pair
		if c.serving == nil {
			c.serving, c.next = c.next, nil
		}
	}
	return secret.Data[trusted], nil
}

// Serving returns the certificate for a connection.
func (c *Certificate) Serving(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.serving == nil {
		return nil, errors.New("the webhook has no certificate yet")
	}
	return c.serving, nil
}

// secret returns the Secret with a certificate that can be used.
func (c *Certificate) secret(ctx context.Context) (*corev1.Secret, error) {
	all := c.Client.CoreV1().Secrets(c.Namespace)
	// another replica may make it at the same time
	for range 3 {
		is, err := all.Get(ctx, c.Name, metav1.GetOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return nil, err
		}
		if err == nil && c.usable(is.Data) {
			return is, nil
		}
		absent := err != nil
		data, err := c.make(is.Data)
		if err != nil {
			return nil, err
		}
		if absent {
			is = &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: c.Namespace, Name: c.Name},
				Type: corev1.SecretTypeTLS, Data: data}
			is, err = all.Create(ctx, is, metav1.CreateOptions{})
		} else {
			is.Data = data
			is, err = all.Update(ctx, is, metav1.UpdateOptions{})
		}
		if err == nil || !apierrors.IsConflict(err) && !apierrors.IsAlreadyExists(err) {
			return is, err
		}
	}
	return nil, errors.New("it changes all the time")
}

// usable reports whether a Secret has a certificate for the hosts that is valid for long enough.
func (c *Certificate) usable(data map[string][]byte) bool {
	pair, err := tls.X509KeyPair(data[corev1.TLSCertKey], data[corev1.TLSPrivateKeyKey])
	if err != nil || !bytes.Contains(data[trusted], bytes.TrimSpace(data[corev1.TLSCertKey])) {
		return false
	}
	leaf, err := x509.ParseCertificate(pair.Certificate[0])
	if err != nil || c.Now().Add(renewBefore).After(leaf.NotAfter) || c.Now().Before(leaf.NotBefore) {
		return false
	}
	for _, host := range c.Hosts {
		if leaf.VerifyHostname(host) != nil {
			return false
		}
	}
	return true
}

// make makes a certificate. before is the content of the Secret until now.
func (c *Certificate) make(before map[string][]byte) (map[string][]byte, error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, err
	}
	t := &x509.Certificate{SerialNumber: serial, Subject: pkix.Name{CommonName: "gpuledger webhook"},
		NotBefore: c.Now().Add(-time.Hour), NotAfter: c.Now().Add(validFor),
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, BasicConstraintsValid: true}
	for _, host := range c.Hosts {
		if ip := net.ParseIP(host); ip != nil {
			t.IPAddresses = append(t.IPAddresses, ip)
		} else {
			t.DNSNames = append(t.DNSNames, host)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, t, t, private.Public(), private)
	if err != nil {
		return nil, err
	}
	text, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		return nil, err
	}
	cert := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	old := before[corev1.TLSCertKey]
	if _, err := tls.X509KeyPair(old, before[corev1.TLSPrivateKeyKey]); err != nil {
		old = nil
	}
	return map[string][]byte{corev1.TLSCertKey: cert,
		corev1.TLSPrivateKeyKey: pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: text}),
		trusted:                 append(bytes.Clone(cert), old...)}, nil
}
