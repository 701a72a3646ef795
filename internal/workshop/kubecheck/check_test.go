// Package kubecheck gives the manifests of examples/cluster to the code that a cluster would give
// them to: the types, defaults and validation of Kubernetes' API server, and Kubeflow's operator.
// It is a module of its own, for they bring half of Kubernetes with them.
package kubecheck

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	kubeflow "github.com/kubeflow/training-operator/pkg/apis/kubeflow.org/v1"
	"github.com/kubeflow/training-operator/pkg/config"
	operator "github.com/kubeflow/training-operator/pkg/controller.v1/pytorch"
	webhook "github.com/kubeflow/training-operator/pkg/webhooks/pytorch"
	"github.com/stretchr/testify/require"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/apimachinery/pkg/util/validation/field"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/apis/batch"
	_ "k8s.io/kubernetes/pkg/apis/batch/install"
	batchvalidation "k8s.io/kubernetes/pkg/apis/batch/validation"
	"k8s.io/kubernetes/pkg/apis/core"
	_ "k8s.io/kubernetes/pkg/apis/core/install"
	corevalidation "k8s.io/kubernetes/pkg/apis/core/validation"
	"sigs.k8s.io/yaml"

	"github.com/gofsdp/gofsdp/comm"
)

// read returns the objects of a manifest by kind. A field that their types do not have is an error.
func read(t *testing.T, file string) map[string]runtime.Object {
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	decoder := json.NewSerializerWithOptions(json.DefaultMetaFactory, legacyscheme.Scheme, legacyscheme.Scheme,
		json.SerializerOptions{Yaml: true, Strict: true})
	objects := make(map[string]runtime.Object)
	for documents := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(text))); ; {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return objects
		}
		require.NoError(t, err)
		object, kind, err := decoder.Decode(document, nil, nil)
		require.NoError(t, err, "%s", document)
		object.(metav1.Object).SetNamespace("default") // as kubectl does
		legacyscheme.Scheme.Default(object)
		objects[kind.Kind] = object
	}
}

// internal turns an object of the API into what the server validates.
func internal[T runtime.Object](t *testing.T, from runtime.Object, to T) T {
	require.NoError(t, legacyscheme.Scheme.Convert(from, to, nil))
	return to
}

func valid(t *testing.T, errs field.ErrorList) {
	t.Helper()
	require.NoError(t, errs.ToAggregate())
}

// rank returns what comm makes of the environment of a pod's only container.
func rank(t *testing.T, pod corev1.PodSpec, more ...corev1.EnvVar) comm.Config {
	require.Len(t, pod.Containers, 1)
	for _, v := range append(more, pod.Containers[0].Env...) {
		switch {
		case v.ValueFrom == nil:
		case v.ValueFrom.SecretKeyRef != nil:
			v.Value = "a secret that nobody knows"
		case v.ValueFrom.FieldRef != nil:
			v.Value = "10.0.0.7"
		}
		t.Setenv(v.Name, v.Value)
	}
	cfg, launched, err := comm.ConfigFromEnv()
	require.NoError(t, err)
	require.True(t, launched)
	require.Equal(t, "10.0.0.7", cfg.Listen)
	require.NotEmpty(t, cfg.Secret)
	return cfg
}

func TestJob(t *testing.T) {
	objects := read(t, "../../../examples/cluster/job.yaml")
	service := objects["Service"].(*corev1.Service)
	service.Spec.ClusterIPs = []string{service.Spec.ClusterIP} // as the server does
	valid(t, corevalidation.ValidateServiceCreate(internal(t, service, &core.Service{})))
	claim := internal(t, objects["PersistentVolumeClaim"], &core.PersistentVolumeClaim{})
	valid(t, corevalidation.ValidatePersistentVolumeClaim(claim, corevalidation.ValidationOptionsForPersistentVolumeClaim(claim, nil)))

	job := objects["Job"].(*batchv1.Job)
	job.UID = "7" // which the server gives, with the labels of the pods
	job.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{batchv1.ControllerUidLabel: "7"}}
	labels := map[string]string{batchv1.ControllerUidLabel: "7", "controller-uid": "7", batchv1.JobNameLabel: job.Name, "job-name": job.Name}
	job.Spec.Template.Labels = labels
	valid(t, batchvalidation.ValidateJob(internal(t, job, &batch.Job{}), batchvalidation.JobValidationOptions{RequirePrefixedLabels: true}))

	for name, value := range service.Spec.Selector {
		require.Equal(t, value, labels[name], name)
	}
	require.Equal(t, service.Name, job.Spec.Template.Spec.Subdomain)
	for i := range int(*job.Spec.Completions) {
		host := fmt.Sprintf("%s-%d", job.Name, i)
		cfg := rank(t, job.Spec.Template.Spec, corev1.EnvVar{Name: "JOB_COMPLETION_INDEX", Value: fmt.Sprint(i)}, corev1.EnvVar{Name: "HOSTNAME", Value: host})
		require.Equal(t, []int{i, int(*job.Spec.Parallelism), 0, 1}, []int{cfg.Rank, cfg.Size, cfg.LocalRank, cfg.LocalSize})
		require.Equal(t, fmt.Sprintf("tcp://%s-0.%s:29500", job.Name, service.Name), cfg.Rendezvous)
	}
}

func TestPyTorchJob(t *testing.T) {
	text, err := os.ReadFile("../../../examples/cluster/pytorchjob.yaml")
	require.NoError(t, err)
	job := &kubeflow.PyTorchJob{}
	require.NoError(t, yaml.UnmarshalStrict(text, job))
	require.Equal(t, kubeflow.SchemeGroupVersion.WithKind("PyTorchJob"), job.GroupVersionKind())
	kubeflow.SetDefaults_PyTorchJob(job)
	config.Config.PyTorchInitContainerImage = config.PyTorchInitContainerImageDefault
	warnings, err := (&webhook.Webhook{}).ValidateCreate(context.Background(), job)
	require.NoError(t, err)
	require.Empty(t, warnings)

	next := 0
	for _, kind := range []kubeflow.ReplicaType{kubeflow.PyTorchJobReplicaTypeMaster, kubeflow.PyTorchJobReplicaTypeWorker} {
		replicas := job.Spec.PyTorchReplicaSpecs[kind]
		for i := range int(*replicas.Replicas) {
			pod := &corev1.PodTemplate{Template: *replicas.Template.DeepCopy()}
			reconciler := &operator.PyTorchJobReconciler{Log: logr.Discard()}
			require.NoError(t, reconciler.SetClusterSpec(job, &pod.Template, strings.ToLower(string(kind)), fmt.Sprint(i)))
			cfg := rank(t, pod.Template.Spec)
			require.Equal(t, []int{next, 4, 0, 1}, []int{cfg.Rank, cfg.Size, cfg.LocalRank, cfg.LocalSize})
			require.Equal(t, "tcp://gpt-master-0:23456", cfg.Rendezvous)
			next++

			pod.Template.Spec.RestartPolicy = corev1.RestartPolicy(replicas.RestartPolicy)
			legacyscheme.Scheme.Default(pod)
			template := internal(t, pod, &core.PodTemplate{}).Template
			valid(t, corevalidation.ValidatePodTemplateSpec(&template, field.NewPath("template"), corevalidation.PodValidationOptions{}))
		}
	}
	require.Equal(t, 4, next)
}
