-- Organization 1, which can be moved, and organization 2, which stays.
insert into organization values (1, 'one'), (2, 'two');
insert into project
select organization.id * 10 + n, organization.id, 'project ' || n
  from organization, generate_series(1, 3) n;
insert into issue_group (project_id, title)
select project.id, 'issue ' || n from project, generate_series(1, 10000) n;
