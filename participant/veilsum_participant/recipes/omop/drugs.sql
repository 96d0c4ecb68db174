-- OMOP CDM 5.4: one row a person who was observed, and which of these drugs were ever recorded, with all descendants:
--   metformin: 1503297, metformin
--   insulin: 21600713, ATC A10A, insulins and analogues
--   statin: 21601855, ATC C10AA, HMG CoA reductase inhibitors
WITH @persons,
@drugs
SELECT
    persons.person_id,
    CASE WHEN drugs.metformin = 1 THEN 'yes' ELSE 'no' END AS metformin,
    CASE WHEN drugs.insulin = 1 THEN 'yes' ELSE 'no' END AS insulin,
    CASE WHEN drugs.statin = 1 THEN 'yes' ELSE 'no' END AS statin
FROM persons
JOIN (SELECT DISTINCT person_id FROM observation_period) AS observed ON observed.person_id = persons.person_id
LEFT JOIN drugs ON drugs.person_id = persons.person_id
