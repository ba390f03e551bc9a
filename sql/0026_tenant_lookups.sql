-- What ends with a tenant or a device is found by them: without this, revoking a device looked at the challenges of all tenants
-- while it held its tenant's lock.
CREATE INDEX challenges_tenant ON challenges (tenant_id, device_id);

-- Tenants that a load generator made, counted before it makes another.
CREATE INDEX tenants_test ON tenants (created_at, slug) WHERE email = 'test-tenant';
