# Builds with PGXS, in place or in a folder of its own:
#
#   make && make install
#   mkdir build && cd build && make -f ../Makefile
#
# PG_CONFIG chooses the server; `make WERROR=` lets warnings pass; TESTPOINTS=1
# makes a library, for tests alone, that can be held at given places.

PG_CONFIG ?= pg_config
WERROR = -Werror

SRCROOT := $(patsubst %/,%,$(dir $(lastword $(MAKEFILE_LIST))))
# PGXS of a server that was built in its own source tree does not set it.
ifneq ($(SRCROOT),.)
VPATH := $(SRCROOT)
endif
EXTVERSION := $(shell sed -n "s/^default_version *= *'\(.*\)'.*/\1/p" $(SRCROOT)/reconcile.control)

EXTENSION = reconcile
MODULE_big = reconcile
PGFILEDESC = "reconcile - leases, fenced writes and reconcile loops"

# Lower rooms first: a room may call only those above it in this list.
OBJS = \
	src/reconcile.o \
	src/core/errors.o \
	src/core/ident.o \
	src/core/duration.o \
	src/core/arrays.o \
	src/core/install.o \
	src/core/function.o \
	src/core/home.o \
	src/core/plan.o \
	src/core/confined.o \
	src/core/access.o \
	src/core/guc.o \
	src/core/tally.o \
	src/core/wake.o \
	src/core/subxact.o \
	src/core/nested.o \
	src/core/jsonb_build.o \
	$(if $(TESTPOINTS),src/core/testpoint.o) \
	src/core/trigger.o \
	src/core/table.o \
	src/core/tree_ddl.o \
	src/lease/incarnation.o \
	src/lease/incarnation_sql.o \
	src/lease/lease.o \
	src/lease/lease_many.o \
	src/lease/lease_sql.o \
	src/fence/fence.o \
	src/fence/fence_sql.o \
	src/fence/merge_patch.o \
	src/fence/guard_catalog.o \
	src/fence/guard_trigger.o \
	src/fence/guard_override.o \
	src/fence/guard_manage.o \
	src/fence/guard_ddl.o \
	src/loop/function.o \
	src/loop/schedule.o \
	src/loop/catalog.o \
	src/loop/mark.o \
	src/loop/arena.o \
	src/loop/due.o \
	src/loop/decide.o \
	src/loop/observed.o \
	src/loop/entity.o \
	src/loop/claim.o \
	src/loop/claim_sql.o \
	src/loop/lister.o \
	src/loop/repository.o \
	src/loop/dead.o \
	src/loop/run.o \
	src/loop/lost.o \
	src/loop/compact.o \
	src/loop/run_loop.o \
	src/loop/run_entity.o \
	src/loop/manage.o \
	src/loop/revive.o \
	src/loop/remember.o \
	src/loop/adopt.o \
	src/loop/watch_catalog.o \
	src/loop/watch_trigger.o \
	src/loop/watch_manage.o \
	src/loop/watch_ddl.o \
	src/journal/digest.o \
	src/journal/envelope.o \
	src/journal/count.o \
	src/journal/keep.o \
	src/journal/audit_chain.o \
	src/journal/audit.o \
	src/journal/audit_prune.o \
	src/journal/actions.o \
	src/journal/authorize.o \
	src/journal/authorizer.o \
	src/journal/grant.o \
	src/journal/audit_access.o \
	src/journal/desired_rules.o \
	src/journal/desired.o \
	src/journal/desired_read.o \
	src/journal/command_rules.o \
	src/journal/command.o \
	src/journal/local.o \
	src/journal/accept.o \
	src/journal/resolution.o \
	src/journal/lifecycle.o \
	src/journal/dispatch.o \
	src/journal/command_sweep.o \
	src/journal/retention.o \
	src/journal/audit_told.o \
	src/journal/audit_verify.o \
	src/journal/explain_command.o \
	src/placement/field.o \
	src/placement/identity.o \
	src/placement/decide.o \
	src/placement/decide_sql.o \
	src/placement/marks.o \
	src/placement/settings.o \
	src/placement/session.o \
	src/placement/holder.o \
	src/placement/session_sql.o \
	src/placement/host_state.o \
	src/placement/claim.o \
	src/placement/session_command_rules.o \
	src/placement/session_command.o \
	src/placement/session_inbox.o \
	src/placement/session_due.o \
	src/placement/session_lease.o \
	src/placement/pointer.o \
	src/placement/keep_marks.o \
	src/placement/members.o \
	src/placement/host.o \
	src/placement/target.o \
	src/placement/ranking.o src/placement/room.o \
	src/placement/registration.o \
	src/placement/offer.o \
	src/placement/heartbeat.o \
	src/placement/workload_row.o \
	src/placement/workload.o \
	src/placement/removal.o \
	src/placement/search.o \
	src/placement/place_judge.o \
	src/placement/place_look.o \
	src/placement/place.o src/placement/place_search.o src/placement/place_desired.o \
	src/placement/explain_placement.o \
	src/placement/placement_sight.o \
	src/sweep/sweep.o \
	src/sweep/sweep_round.o \
	src/sweep/sweep_due.o \
	src/sweep/sweep_pending.o \
	src/sweep/sweep_deadlines.o \
	src/sweep/sweep_host_targets.o \
	src/sweep/sweep_offers.o \
	src/sweep/sweep_claims.o \
	src/sweep/sweep_loop.o \
	src/sweep/sweep_schedule.o \
	src/engine/shmem.o \
	src/engine/command_stats.o \
	src/engine/stats.o \
	src/engine/runlog.o \
	src/engine/wakeup.o \
	src/engine/crash.o \
	src/engine/process.o \
	src/engine/launcher.o \
	src/engine/dispatcher.o \
	src/engine/terms.o \
	src/engine/resync.o \
	src/engine/pool.o \
	src/engine/suspects.o \
	src/engine/handout.o \
	src/engine/collect.o \
	src/engine/lend.o \
	src/engine/lend_answer.o \
	src/engine/rotate.o \
	src/engine/publish.o \
	src/engine/executor.o \
	src/engine/runs.o \
	src/engine/operate.o \
	src/engine/ddl.o \
	src/engine/engine.o \
	src/observe/sight.o \
	src/observe/metrics.o \
	src/observe/health.o \
	src/observe/explain.o

# The install script is these parts in this order.
SQL_PARTS = \
	src/core/header.sql \
	src/core/access.sql \
	src/core/home.sql \
	src/lease/lease.sql \
	src/lease/incarnation.sql \
	src/fence/fence.sql \
	src/fence/guard.sql \
	src/loop/mark.sql \
	src/loop/loop.sql \
	src/loop/watch.sql \
	src/loop/run.sql \
	src/loop/claim.sql \
	src/loop/schedule.sql \
	src/journal/command.sql \
	src/journal/desired.sql \
	src/journal/audit.sql \
	src/journal/journal.sql \
	src/placement/placement.sql \
	src/placement/session.sql \
	src/placement/session_command.sql \
	src/placement/host.sql \
	src/placement/catalogue.sql \
	src/placement/host_functions.sql \
	src/placement/workload_functions.sql \
	src/placement/place.sql \
	src/sweep/sweep.sql \
	src/sweep/sweep_functions.sql \
	src/engine/engine.sql \
	src/observe/observe.sql \
	src/engine/operate.sql \
	src/observe/views.sql \
	src/observe/explain.sql \
	src/core/grants.sql

INSTALL_SCRIPT_SQL = $(EXTENSION)--$(EXTVERSION).sql
DATA_built = $(INSTALL_SCRIPT_SQL)

DOCS = $(patsubst $(SRCROOT)/%,%,$(wildcard $(SRCROOT)/doc/reference.md))
ifeq ($(strip $(DOCS)),)
undefine DOCS
endif

PG_CPPFLAGS = -I$(SRCROOT)/src -DRECONCILE_VERSION='"$(EXTVERSION)"' \
	$(if $(TESTPOINTS),-DRECONCILE_TESTPOINTS)

# The server's own flags bring -Wdeclaration-after-statement, -Wvla and
# -Wmissing-prototypes. Clang is handed flags that were chosen for gcc, so it
# must not stumble over those it does not know, nor over gnu_printf in the
# server's headers.
GCC_WARNINGS = -Wshadow=compatible-local
CLANG_WARNINGS = -Wno-unknown-warning-option -Wno-ignored-optimization-argument \
	-Wno-unused-command-line-argument -Wno-ignored-attributes
PG_CFLAGS = $(WERROR) -Wall -Wextra \
	-Wno-unused-parameter -Wno-sign-compare -Wno-missing-field-initializers \
	$(if $(findstring clang,$(shell $(CC) --version)),$(CLANG_WARNINGS),$(GCC_WARNINGS))

# The names that the server looks up and no others leave the module. (Hidden
# visibility alone, which PGXS asks for from 16 on, cannot do it on 15, where
# PG_FUNCTION_INFO_V1 does not mark the function itself.)
EXPORTS = $(SRCROOT)/src/exports.map
SHLIB_LINK = -Wl,--version-script=$(EXPORTS)

# Bitcode would need the one clang that the server was built with.
override with_llvm = no

REGRESS = $(shell sed -n 's/^test: *//p' $(SRCROOT)/sql/schedule 2>/dev/null)
REGRESS_OPTS = --inputdir=$(SRCROOT) --load-extension=reconcile

PGXS := $(shell $(PG_CONFIG) --pgxs)
include $(PGXS)

# PGXS does not track headers here, and a stale object is worse than a slow
# build. (The name HEADERS would install them.)
SOURCE_HEADERS := $(wildcard $(SRCROOT)/src/*.h $(SRCROOT)/src/*/*.h)
$(OBJS): $(SOURCE_HEADERS)

$(shlib): $(EXPORTS)

# Absolute, as VPATH would else find the folders of the source tree.
OBJECT_DIRS := $(addprefix $(CURDIR)/,$(patsubst %/,%,$(sort $(dir $(OBJS)))))
$(OBJS): | $(OBJECT_DIRS)
$(OBJECT_DIRS):
	$(MKDIR_P) $@

$(INSTALL_SCRIPT_SQL): $(SQL_PARTS) Makefile reconcile.control
	@rm -f $@.tmp
	@for part in $(filter %.sql,$^); do \
		printf -- '-- %s\n\n' "src/$${part##*src/}" && cat "$$part" && echo || exit 1; \
	done > $@.tmp
	@mv $@.tmp $@
	@echo "assembled $@"
